//! What a journal knows of group snapshots, and of the writers of their members.

use std::{collections::BTreeMap, fmt::Write, fs};

/// How many blocks of each writer were acknowledged.
pub(crate) type Counts = [u64; 2];

/// One group snapshot.
#[derive(Debug, Default, Clone)]
pub(crate) struct Asked {
    /// The life in which it was asked for.
    pub(crate) run: u64,
    /// What was acknowledged before.
    pub(crate) before: Counts,
    /// What was acknowledged afterwards, where that came.
    pub(crate) after: Option<Counts>,
    pub(crate) is_being_forgotten: bool,
    pub(crate) was_forgotten: bool,
}

/// All of a journal.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The last life.
    pub(crate) run: u64,
    /// What is known to be acknowledged of that.
    pub(crate) acknowledged: Counts,
    /// The number of the next group snapshot.
    pub(crate) next: u64,
    pub(crate) asked: BTreeMap<String, Asked>,
}

impl Record {
    pub(crate) fn read(path: &str) -> Self {
        let mut record = Self::default();
        for line in fs::read_to_string(path).unwrap_or_default().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |index: usize| words[index].parse::<u64>().unwrap();
            let name = words[1].to_owned();
            match words[0] {
                "life" => (record.run, record.acknowledged) = (number(1), [0, 0]),
                "next" => record.next = number(1),
                "asking" => {
                    record.next = name[1..].parse::<u64>().unwrap() + 1;
                    record.acknowledged = [number(3), number(4)];
                    let asked = record.asked.entry(name).or_default();
                    (asked.run, asked.before) = (number(2), [number(3), number(4)]);
                }
                "taken" => {
                    record.acknowledged = [number(3), number(4)];
                    record.asked.entry(name).or_default().after = Some([number(3), number(4)]);
                }
                "forgetting" => record.asked.entry(name).or_default().is_being_forgotten = true,
                "forgotten" => record.asked.entry(name).or_default().was_forgotten = true,
                "stopped" | "half" => {}
                other => panic!("{other}"),
            }
        }
        record
    }

    /// Writes it anew, after `half` group snapshots were found that were not whole.
    pub(crate) fn write(&self, path: &str, half: usize) {
        let mut text = String::new();
        for (name, asked) in &self.asked {
            let (run, [first, second]) = (asked.run, asked.before);
            writeln!(text, "asking {name} {run} {first} {second}").unwrap();
            if let Some([first, second]) = asked.after {
                writeln!(text, "taken {name} {run} {first} {second}").unwrap();
            }
        }
        writeln!(text, "life {}\nnext {}", self.run, self.next).unwrap();
        for _ in 0..half {
            text.push_str("half group\n");
        }
        fs::write(path, text).unwrap();
    }
}
