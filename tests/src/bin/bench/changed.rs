//! Which ranges of images changed: the time beside a program that reads both, and the memory.

use std::{
    fs::File,
    ops::{ControlFlow, Range},
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use drumlin_host::{
    Result,
    changed::{BLOCK, Pair, allocated, differing},
};
use drumlin_tests::{
    programs::run,
    storage::{Kind, Scratch},
};

use crate::{
    measure::{Table, median},
    process::Growth,
};

const GIB: u64 = 1 << 30;
/// Blocks that are written, one of a hundred, and how many of them lie together.
const WRITTEN: u64 = 2560;
const TOGETHER: [(u64, &str); 2] = [(16, "in writes of 64 KiB"), (1, "each block alone")];
/// Extents of the large image, 4 KiB in each MiB.
const EXTENTS: u64 = 100_000;

/// The number of bytes that are found.
fn count(search: impl FnOnce(&mut dyn FnMut(Range<u64>) -> Result<ControlFlow<()>>)) -> u64 {
    let mut sum = 0;
    search(&mut |range| {
        sum += range.end - range.start;
        Ok(ControlFlow::Continue(()))
    });
    sum
}

fn changed_bytes(base: &Path, target: &Path) -> u64 {
    count(|mut sink| differing(Pair { base, target }, 0, &mut sink).unwrap())
}

fn share(from: &Path, to: &Path) {
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    run("cp", &["--reflink=always", from, to]);
}

/// Writes one block at each of the offsets.
fn write_blocks(path: &Path, byte: u8, offsets: impl Iterator<Item = u64>) {
    let file = File::options().write(true).open(path).unwrap();
    for offset in offsets {
        file.write_all_at(&[byte; 4096], offset).unwrap();
    }
    file.sync_all().unwrap();
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

/// 1 GiB of which one block of a hundred was written since, beside `cmp` of 1 GiB that is the same: it would end at the
/// first difference. Both have all they read in the page cache.
pub(crate) fn shared_blocks(table: &mut Table) {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", Kind::Xfs, 4 << 10);
    let [base, same] = ["base", "same"].map(|name| images.join(name));
    let file = File::create(&base).unwrap();
    for mebibyte in 0..GIB >> 20 {
        let bytes = (!mebibyte).to_le_bytes().repeat(1 << 17);
        file.write_all_at(&bytes, mebibyte << 20).unwrap();
    }
    file.sync_all().unwrap();
    share(&base, &same);
    let names = [&base, &same].map(|path| path.to_str().unwrap());
    for (together, layout) in TOGETHER {
        let target = images.join(layout);
        share(&base, &target);
        let writes = (0..WRITTEN / together).map(|write| write * together * 100);
        let blocks = writes.flat_map(|first| first..first + together);
        write_blocks(&target, 1, blocks.map(|block| block * BLOCK));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..9 {
            theirs.push(timed(|| drop(run("cmp", &names))));
            ours.push(timed(|| {
                assert_eq!(changed_bytes(&base, &target), WRITTEN * BLOCK);
            }));
        }
        table.ratio(
            &format!("changed ranges of 1 GiB, 1 % written {layout}, reflinks, beside `cmp`"),
            (median(ours), median(theirs)),
            0.05,
        );
    }
}

/// How much more resident memory this process has meanwhile than before, at most, in MiB.
fn growth(work: impl FnOnce()) -> f64 {
    let growth = Growth::begin("self");
    work();
    growth.end()
}

/// A sparse image of 100 GiB.
pub(crate) fn memory(table: &mut Table) {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", Kind::Xfs, 4 << 10);
    let [base, target] = ["base", "target"].map(|name| images.join(name));
    File::create(&base).unwrap().set_len(100 * GIB).unwrap();
    write_blocks(&base, 1, (0..EXTENTS).map(|at| at << 20));
    share(&base, &target);
    write_blocks(&target, 2, (0..EXTENTS).step_by(10).map(|at| at << 20));
    let found = growth(|| {
        let bytes = count(|mut sink| allocated(&target, 0, &mut sink).unwrap());
        assert_eq!(bytes, EXTENTS * BLOCK);
    });
    let what = "of a sparse 100 GiB with 100,000 extents, resident memory";
    table.most(&format!("allocated ranges {what}"), found, 4.0, "MiB");
    let begun = Instant::now();
    let found = growth(|| {
        assert_eq!(changed_bytes(&base, &target), EXTENTS / 10 * BLOCK);
    });
    println!("changed ranges of them: {:?}", begun.elapsed());
    table.most(&format!("changed ranges {what}"), found, 4.0, "MiB");
}
