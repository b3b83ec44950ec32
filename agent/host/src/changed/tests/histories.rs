//! After any history of writes, exactly the blocks that differ are found.

use std::{fs, ops::Range, path::Path};

use super::{
    checks::{check_allocated, check_differing, found, found_allocated, found_differing},
    history::{Ground, History},
};
use crate::{
    FileSystem,
    changed::{Pair, differing_in},
};

const HISTORIES: u64 = 40;
/// Of file systems that are like another one.
const FEW: u64 = 20;

/// Compares two images from several offsets on.
fn compare(base: &Path, target: &Path, history: &mut History) -> Result<(), String> {
    let (before, now) = (fs::read(base).unwrap(), fs::read(target).unwrap());
    let size = u64::try_from(now.len()).unwrap();
    for start in [0, history.random.within(0..size), size] {
        let ranges = found_differing(Pair { base, target }, start);
        check_differing((&before, &now), start, &ranges)?;
        check_allocated(&now, start, &found_allocated(target, start))?;
    }
    Ok(())
}

/// Compares only what was written, as a store of overwritten chunks tells it.
fn compare_touched(base: &Path, target: &Path, mut touched: Vec<Range<u64>>) -> Result<(), String> {
    touched.sort_by_key(|range| range.start);
    let mut candidates = touched.into_iter().map(Ok);
    let pair = Pair { base, target };
    let ranges = found(|sink| differing_in(pair, &mut candidates, 0, sink)).unwrap();
    let (before, now) = (fs::read(base).unwrap(), fs::read(target).unwrap());
    check_differing((&before, &now), 0, &ranges)
}

fn go_through(ground: &Ground, histories: u64) {
    for seed in 0..histories {
        let mut history = History::new(ground, seed);
        history.go_on();
        let first = history.snapshot("first");
        history.go_on();
        let touched = history.touched.clone();
        let second = history.snapshot("second");
        history.go_on();
        let live = history.live.clone();
        let outcome = compare(&first, &second, &mut history)
            .and_then(|()| compare_touched(&first, &second, touched))
            // The image itself is not written to the disk yet.
            .and_then(|()| compare_touched(&second, &live, history.touched.clone()))
            .and_then(|()| compare(&second, &live, &mut history))
            .and_then(|()| compare(&first, &live, &mut history));
        outcome.unwrap_or_else(|wrong| panic!("history {seed}: {wrong}"));
    }
}

#[test]
fn on_xfs_exactly_what_differs_is_found() {
    go_through(&Ground::of(FileSystem::Xfs), HISTORIES);
}

#[test]
fn where_blocks_are_smaller_than_what_is_found_all_of_it_is() {
    go_through(&Ground::of_small_blocks(), FEW);
}

#[test]
fn on_btrfs_exactly_what_differs_is_found() {
    go_through(&Ground::of(FileSystem::Btrfs), HISTORIES);
}

#[test]
fn on_ext4_exactly_what_differs_is_found() {
    go_through(&Ground::of(FileSystem::Ext4), HISTORIES);
}

#[test]
fn in_memory_exactly_what_differs_is_found() {
    go_through(&Ground::memory(), FEW);
}
