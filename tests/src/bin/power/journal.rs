//! What was begun and what was acknowledged, in a file of a line each.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
};

/// A file that is written outside of the machine, so that a cut takes nothing of it.
pub(crate) struct Journal(File);

/// What is known of one volume or snapshot.
#[derive(Debug, Default, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a line of the journal"
)]
pub(crate) struct Known {
    pub(crate) was_made: bool,
    pub(crate) was_written: bool,
    /// In mebibytes.
    pub(crate) grown_to: Option<i64>,
    pub(crate) is_being_deleted: bool,
    pub(crate) was_deleted: bool,
}

impl Journal {
    pub(crate) fn open(path: &str) -> Self {
        Self(
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .unwrap(),
        )
    }

    pub(crate) fn note(&mut self, word: &str, name: &str) {
        // One write, so that a line is there whole or not at all.
        self.0
            .write_all(format!("{word} {name}\n").as_bytes())
            .unwrap();
    }
}

/// Everything that a journal knows, by name.
pub(crate) fn read(path: &str) -> BTreeMap<String, Known> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut all: BTreeMap<String, Known> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let known = all.entry(words[1].to_owned()).or_default();
        match words[0] {
            "making" => {}
            "made" => known.was_made = true,
            "written" => known.was_written = true,
            "grown" => known.grown_to = words[2].parse().ok(),
            "deleting" => known.is_being_deleted = true,
            "deleted" => known.was_deleted = true,
            other => panic!("{other}"),
        }
    }
    all
}
