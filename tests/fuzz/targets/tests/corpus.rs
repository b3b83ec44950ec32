//! Each target over its corpus, and for some seconds over what small changes make of that: the same ones each time.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::{
    fs, panic,
    path::Path,
    time::{Duration, Instant},
};

/// So long a target is tried.
const TIME: Duration = Duration::from_secs(5);
/// No input is longer than that, in bytes.
const LONGEST: usize = 1 << 16;

/// A generator of numbers (xorshift64*): the same ones each time.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// A number below this one.
    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next()).unwrap() % most.max(1)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// What a few changes make of an input.
    fn change(&mut self, input: &[u8], others: &[Vec<u8>]) -> Vec<u8> {
        let mut changed = input.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(changed.len() + 1);
            let end = (at + self.below(16)).min(changed.len());
            match self.below(7) {
                0 if at < changed.len() => changed[at] = self.byte(),
                1 if at < changed.len() => changed[at] ^= 1 << self.below(8),
                2 => drop(changed.drain(at..end)),
                3 => changed.insert(at, self.byte()),
                4 => {
                    let part = changed[at..end].to_vec();
                    changed.splice(at..at, part.iter().copied().cycle().take(part.len() * 3));
                }
                5 => {
                    let other = &others[self.below(others.len())];
                    let from = self.below(other.len() + 1);
                    let until = (from + self.below(64)).min(other.len());
                    changed.splice(at..end, other[from..until].iter().copied());
                }
                _ => {
                    const WORDS: [&str; 8] = [
                        "18446744073709551615",
                        "-1",
                        "0",
                        "\u{0}",
                        "%2F",
                        "../",
                        "\u{feff}",
                        "{[\"",
                    ];
                    let word = WORDS[self.below(WORDS.len())];
                    changed.splice(at..end, word.bytes());
                }
            }
        }
        changed.truncate(LONGEST);
        changed
    }
}

fn over_corpus(name: &str, target: fn(&[u8])) {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../corpus")
        .join(name);
    let mut files: Vec<_> = fs::read_dir(&home)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let corpus: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    assert!(!corpus.is_empty(), "{}", home.display());
    let run = |input: &[u8]| {
        let begun = Instant::now();
        if panic::catch_unwind(|| target(input)).is_err() {
            let kept = std::env::temp_dir().join(format!("drumlin-fuzz-{name}"));
            fs::write(&kept, input).unwrap();
            panic!(
                "{name}: {} is an input that it does not stand",
                kept.display()
            );
        }
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{name} takes long over {input:?}"
        );
    };
    for input in &corpus {
        run(input);
    }
    run(b"");
    let begun = Instant::now();
    let mut chance = Chance(0x0064_7275_6d6c_696e);
    while begun.elapsed() < TIME {
        for _ in 0..16 {
            let input = &corpus[chance.below(corpus.len())];
            run(&chance.change(input, &corpus));
        }
    }
}

#[test]
fn manifests() {
    over_corpus("manifests", drumlin_fuzz_targets::manifests);
}

#[test]
fn lvm_metadata() {
    over_corpus("lvm_metadata", drumlin_fuzz_targets::lvm_metadata);
}

#[test]
fn mount_table() {
    over_corpus("mount_table", drumlin_fuzz_targets::mount_table);
}

#[test]
fn superblocks() {
    over_corpus("superblocks", drumlin_fuzz_targets::superblocks);
}

#[test]
fn ids() {
    over_corpus("ids", drumlin_fuzz_targets::ids);
}

#[test]
fn quantities() {
    over_corpus("quantities", drumlin_fuzz_targets::quantities);
}

#[test]
fn requests() {
    over_corpus("requests", drumlin_fuzz_targets::requests);
}
