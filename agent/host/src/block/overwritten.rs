//! The chunks that the exception store of a snapshot names: what was overwritten since, and can differ.

use std::{ops::Range, path::Path};

use super::cow_store::Store;
use crate::Result;

/// Chunks that one pass over the store finds, a bit each: 512 KiB, for 16 GiB of an origin with chunks of 4 KiB.
const WINDOW: usize = 4 << 20;
/// Bits of a word.
const WORD: usize = 64;

/// The ranges of an origin, in bytes, that a store names: in ascending order, each of whole chunks. Two may lie side by
/// side.
///
/// A store is in the order of the writes, and has 16 bytes for each chunk. It is read once, and once more for each
/// further window of the origin in which anything was overwritten; memory is that of one window and one area.
/// Chunks that are overwritten meanwhile may be missing.
#[derive(Debug)]
pub struct Overwritten {
    store: Store,
    /// Whether a chunk of the window is named.
    bits: Vec<u64>,
    /// The first chunk of the window.
    first: u64,
    /// The next chunk to look at, counted from the first of the window.
    at: usize,
    /// The first chunk behind the window that the store names.
    next: Option<u64>,
}

impl Overwritten {
    /// The ranges that the store with this path names.
    ///
    /// # Errors
    /// `Precondition` when it does not belong to a valid snapshot, `Io`.
    pub fn of(store: &Path) -> Result<Self> {
        Self::within(store, WINDOW)
    }

    /// The same with windows of so many chunks.
    fn within(store: &Path, window: usize) -> Result<Self> {
        Ok(Self {
            store: Store::open(store)?,
            bits: vec![0; window.div_ceil(WORD)],
            first: 0,
            at: 0,
            // The first window is not filled yet.
            next: Some(0),
        })
    }

    /// Fills the window from the chunk `first` on.
    fn fill(&mut self, first: u64) -> Result<()> {
        self.bits.fill(0);
        (self.first, self.at, self.next) = (first, 0, None);
        let Self {
            store, bits, next, ..
        } = self;
        store.each_area(|chunks| {
            for &chunk in chunks.iter().filter(|chunk| **chunk >= first) {
                let at = usize::try_from(chunk - first).unwrap_or(usize::MAX);
                match bits.get_mut(at / WORD) {
                    Some(word) => *word |= 1 << (at % WORD),
                    None => *next = Some(next.map_or(chunk, |next| next.min(chunk))),
                }
            }
            Ok(())
        })
    }

    /// The next named chunks of the window, counted from its first.
    fn run(&self) -> Option<Range<usize>> {
        let start = position(&self.bits, self.at, |word| word)?;
        let end = position(&self.bits, start, |word| !word).unwrap_or(self.bits.len() * WORD);
        Some(start..end)
    }
}

impl Iterator for Overwritten {
    type Item = Result<Range<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(run) = self.run() {
                self.at = run.end;
                let offset = |chunk| {
                    let chunk = u64::try_from(chunk).unwrap_or(u64::MAX);
                    let chunk = self.first.saturating_add(chunk);
                    chunk.saturating_mul(self.store.chunk)
                };
                return Some(Ok(offset(run.start)..offset(run.end)));
            }
            let first = self.next?;
            if let Err(error) = self.fill(first) {
                self.next = None;
                return Some(Err(error));
            }
        }
    }
}

/// The first bit at or after `at` that is set once its word is turned.
fn position(words: &[u64], at: usize, turned: impl Fn(u64) -> u64) -> Option<usize> {
    let mut above = u64::MAX << (at % WORD);
    for (number, word) in words.iter().enumerate().skip(at / WORD) {
        let word = turned(*word) & above;
        if word != 0 {
            let bit = usize::try_from(word.trailing_zeros()).ok()?;
            return Some(number * WORD + bit);
        }
        above = u64::MAX;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::{super::cow_store::store_of, *};

    /// The chunks that a store of these lists, in windows of 128, and the ranges that they are in.
    fn listed(chunks: &[u64]) -> (Vec<u64>, usize) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        fs::write(&path, store_of(chunks)).unwrap();
        let ranges = Overwritten::within(&path, 128).unwrap();
        let ranges: Vec<_> = ranges.map(Result::unwrap).collect();
        let whole = |range: &Range<u64>| range.start / 4096..range.end / 4096;
        (ranges.iter().flat_map(whole).collect(), ranges.len())
    }

    #[test]
    fn what_lies_together_is_one_range_within_a_window() {
        assert_eq!(listed(&[]), (vec![], 0));
        assert_eq!(listed(&[3, 1, 2, 2]), (vec![1, 2, 3], 1));
        let (chunks, ranges) = listed(&(100..400).rev().collect::<Vec<u64>>());
        assert_eq!(chunks, (100..400).collect::<Vec<u64>>());
        // The windows begin at 0, 128 and 256, and the last one has 16 of its own.
        assert_eq!(ranges, 4);
        let most = u64::MAX / 4096 - 1;
        assert_eq!(listed(&[most, 0]), (vec![0, most], 2));
    }

    #[test]
    fn a_store_that_becomes_unreadable_is_an_error_and_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        fs::write(&path, "").unwrap();
        assert!(Overwritten::of(&path).is_err());
        fs::write(&path, store_of(&[1, 2])).unwrap();
        let mut ranges = Overwritten::of(&path).unwrap();
        assert_eq!(ranges.next().unwrap().unwrap(), 4096..12_288);
        assert!(ranges.next().is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_named_chunk_is_listed_once_and_in_order(
            mut chunks in prop::collection::vec(0_u64..3000, 0..600),
        ) {
            let (found, _) = listed(&chunks);
            chunks.sort_unstable();
            chunks.dedup();
            prop_assert_eq!(found, chunks);
        }
    }
}
