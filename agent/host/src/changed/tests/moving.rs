//! Blocks that the file system moves meanwhile change nothing of what is found.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    checks::{check_differing, found_differing},
    history::{Ground, History},
};
use crate::{FileSystem, changed::Pair, testing::run};

/// Has both files share what they have in common, as a background program would.
fn share_again(from: &Path, to: &Path, size: u64) {
    const PART: u64 = 64 << 10;
    let parts = (0..size / PART).map(|part| {
        let at = part * PART;
        format!("dedupe {} {at} {at} {PART}", from.display())
    });
    let commands: Vec<String> = parts.flat_map(|part| ["-c".to_owned(), part]).collect();
    let mut arguments: Vec<&str> = commands.iter().map(String::as_str).collect();
    arguments.push(to.to_str().unwrap());
    run("xfs_io", &arguments);
}

#[test]
fn what_differs_is_found_while_the_blocks_of_both_move() {
    let ground = Ground::of(FileSystem::Btrfs);
    let mut history = History::new(&ground, 7);
    history.go_on();
    history.go_on();
    let base = &history.snapshot("base");
    history.go_on();
    let target = &history.snapshot("target");
    let (before, now) = (fs::read(base).unwrap(), fs::read(target).unwrap());
    let size = u64::try_from(before.len()).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for path in [base, target] {
                    run(
                        "btrfs",
                        &["filesystem", "defragment", "-f", path.to_str().unwrap()],
                    );
                    share_again(base, target, size);
                }
            }
        });
        let begun = Instant::now();
        let mut outcome = Ok(());
        while outcome.is_ok() && begun.elapsed() < Duration::from_secs(1) {
            let ranges = found_differing(Pair { base, target }, 0);
            outcome = check_differing((&before, &now), 0, &ranges);
        }
        is_over.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
}
