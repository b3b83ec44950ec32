//! What is not read: blocks that both images share, and only these.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{
    checks::{check_differing, found_differing},
    history::{Ground, History, MIB, new_file},
};
use crate::{
    FileSystem,
    changed::{
        BLOCK, Pair,
        image::Image,
        same_blocks::{Window, same_blocks},
    },
    copy::{Reflink, reflink},
    testing::run,
};

/// A base of 8 MiB and a target with one other block, which shares the rest if the file system can do that.
fn images(directory: &Path) -> (PathBuf, PathBuf) {
    let [base, target] = ["base", "target"].map(|name| directory.join(name));
    let copy = new_file(&target);
    fs::write(&base, vec![1; 8 << 20]).unwrap();
    if reflink(&File::open(&base).unwrap(), &copy).unwrap() == Reflink::Unsupported {
        fs::copy(&base, &target).unwrap();
    }
    copy.write_all_at(&[2; 4096], MIB).unwrap();
    (base, target)
}

/// What maps alone say.
fn window(base: &Path, target: &Path) -> Window {
    let [base, target] = [base, target].map(|path| Image::open(path).unwrap());
    same_blocks(&base, &target, 0..8 * MIB).unwrap()
}

#[test]
fn all_that_is_shared_is_known_on_file_systems_that_share_blocks() {
    for kind in [FileSystem::Xfs, FileSystem::Btrfs] {
        let ground = Ground::of(kind);
        let (base, target) = images(&ground.path());
        let wanted = Window {
            same: vec![0..MIB, MIB + 4096..8 * MIB],
            end: 8 * MIB,
        };
        assert_eq!(window(&base, &target), wanted, "{kind}");
    }
    for ground in [Ground::of(FileSystem::Ext4), Ground::memory()] {
        let (base, target) = images(&ground.path());
        assert_eq!(window(&base, &target).same, []);
    }
}

#[test]
fn shared_blocks_are_known_behind_the_first_page_of_extents_too() {
    for kind in [FileSystem::Xfs, FileSystem::Btrfs] {
        let ground = Ground::of(kind);
        let (base, target) = images(&ground.path());
        let file = File::options().write(true).open(&target).unwrap();
        for block in (0..2048).step_by(3) {
            file.write_all_at(&[2; 4096], block * BLOCK).unwrap();
        }
        let [base, target] = [base, target].map(|path| Image::open(&path).unwrap());
        let (mut at, mut same, mut windows) = (0, 0, 0);
        while at < 8 * MIB {
            let window = same_blocks(&base, &target, at..8 * MIB).unwrap();
            same += window
                .same
                .iter()
                .map(|same| same.end - same.start)
                .sum::<u64>();
            (at, windows) = (window.end, windows + 1);
        }
        // The block at 1 MiB was written before, beside one that is now.
        assert_eq!(same / BLOCK, 2048 - 683 - 1, "{kind}");
        assert_eq!(windows, 6, "{kind}");
    }
}

#[test]
fn the_same_offset_on_two_devices_is_not_the_same_block() {
    let grounds = [1, 2].map(|byte| {
        let ground = Ground::of(FileSystem::Xfs);
        let [image, copy] = ["image", "copy"].map(|name| ground.path().join(name));
        fs::write(&image, vec![byte; 1 << 20]).unwrap();
        reflink(&File::open(&image).unwrap(), &new_file(&copy)).unwrap();
        ground
    });
    let [base, target] = &grounds.each_ref().map(|ground| ground.path().join("image"));
    assert_ne!(window(base, target).same, []);
    let ranges = found_differing(Pair { base, target }, 0);
    assert_eq!(ranges.len(), 1);
    assert_eq!(ranges[0], 0..MIB);
}

#[test]
fn compressed_blocks_are_read_and_found() {
    let ground = Ground::of(FileSystem::Btrfs);
    let directory = ground.path();
    let property = ["property", "set", directory.to_str().unwrap()];
    run("btrfs", &[&property[..], &["compression", "lzo"]].concat());
    let (base, target) = images(&directory);
    assert_eq!(window(&base, &target).same, []);
    for seed in 0..10 {
        let mut history = History::new(&ground, seed);
        history.go_on();
        let base = &history.snapshot("base");
        history.go_on();
        let target = &history.live;
        let (before, now) = (fs::read(base).unwrap(), fs::read(target).unwrap());
        let ranges = found_differing(Pair { base, target }, 0);
        check_differing((&before, &now), 0, &ranges).unwrap();
    }
}
