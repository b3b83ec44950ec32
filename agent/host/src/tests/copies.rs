//! Copies have the same contents, and use the expected space.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use proptest::prelude::*;

use crate::{
    FileSystem, Kind,
    copy::{full_copy, preallocate, sparse_copy, supports_reflink},
    testing::{Mounted, Scratch, run},
    zeros::is_zero,
};

const MIB: u64 = 1 << 20;

fn used(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

fn target(path: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap()
}

#[expect(clippy::unnecessary_wraps, reason = "who hears of a copy can end it")]
fn unheard(_: u64) -> io::Result<()> {
    Ok(())
}

/// 64 MiB with data in three places, one of them at the very end.
fn sparse_image(path: &Path) {
    let file = target(path);
    file.set_len(64 * MIB).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.write_all_at(&vec![2; 3 << 20], 10 * MIB + 512)
        .unwrap();
    file.write_all_at(b"end", 64 * MIB - 3).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_sparse_copy_holds_the_same_and_takes_no_more_room() {
    let xfs = Mounted::new(FileSystem::Xfs, 320 * MIB);
    let scratch = Scratch::new();
    // Within one file system, and from one to another.
    for (from, to) in [
        (scratch.path(), scratch.path()),
        (xfs.target.clone(), xfs.target.clone()),
        (scratch.path(), xfs.target.clone()),
    ] {
        let (source, copy) = (from.join("source"), to.join("copy"));
        sparse_image(&source);
        let mut heard = 0;
        sparse_copy(&File::open(&source).unwrap(), &target(&copy), |bytes| {
            heard += bytes;
            Ok(())
        })
        .unwrap();
        assert_eq!(fs::read(&source).unwrap(), fs::read(&copy).unwrap());
        assert!(
            used(&copy) <= 4 * MIB,
            "{} takes {}",
            copy.display(),
            used(&copy)
        );
        assert!((3 * MIB..8 * MIB).contains(&heard), "{heard}");
        fs::remove_file(source).unwrap();
        fs::remove_file(copy).unwrap();
    }
}

#[test]
fn a_full_copy_has_all_its_room_and_shares_none() {
    let xfs = Mounted::new(FileSystem::Xfs, 320 * MIB);
    let (source, copy) = (xfs.path().join("source"), xfs.path().join("copy"));
    sparse_image(&source);
    full_copy(
        &File::open(&source).unwrap(),
        &target(&copy),
        80 * MIB,
        unheard,
    )
    .unwrap();
    let copied = fs::read(&copy).unwrap();
    assert_eq!(copied.len(), 80 << 20);
    assert_eq!(copied.get(..64 << 20).unwrap(), fs::read(&source).unwrap());
    assert!(is_zero(copied.get(64 << 20..).unwrap()));
    assert!(used(&copy) >= 80 * MIB);
    let extents = run("filefrag", &["-v", copy.to_str().unwrap()]);
    assert!(!extents.contains("shared"), "{extents}");
}

#[test]
fn a_full_disk_is_no_space() {
    let ext4 = Mounted::new(FileSystem::Ext4, 8 * MIB);
    let scratch = Scratch::new();
    let source = scratch.path().join("source");
    fs::write(&source, vec![1; 32 << 20]).unwrap();
    let source = File::open(source).unwrap();
    for (name, result) in [
        (
            "sparse",
            sparse_copy(&source, &target(&ext4.path().join("a")), unheard),
        ),
        (
            "reserve",
            preallocate(&target(&ext4.path().join("b")), 32 * MIB),
        ),
        (
            "full",
            full_copy(&source, &target(&ext4.path().join("c")), 32 * MIB, unheard),
        ),
    ] {
        assert_eq!(result.unwrap_err().kind(), Kind::NoSpace, "{name}");
    }
}

#[test]
fn reserving_again_keeps_what_is_there() {
    let scratch = Scratch::new();
    let path = scratch.path().join("file");
    let file = target(&path);
    preallocate(&file, MIB).unwrap();
    file.write_all_at(b"hello", 0).unwrap();
    preallocate(&file, 2 * MIB).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 2 * MIB);
    assert!(used(&path) >= 2 * MIB);
    assert!(fs::read(&path).unwrap().starts_with(b"hello"));
}

#[test]
fn which_file_systems_share_blocks_is_found_out_and_nothing_left() {
    for (kind, bytes, wanted) in [
        (FileSystem::Ext4, 8 * MIB, false),
        (FileSystem::Xfs, 300 * MIB, true),
        (FileSystem::Btrfs, 128 * MIB, true),
    ] {
        let mounted = Mounted::new(kind, bytes);
        assert_eq!(supports_reflink(mounted.path()).unwrap(), wanted, "{kind}");
        let left = fs::read_dir(mounted.path()).unwrap().flatten();
        assert!(
            left.into_iter()
                .all(|entry| entry.file_name() == "lost+found")
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_layout_of_data_and_holes_is_copied(
        pieces in prop::collection::vec((0_u64..1 << 21, 1_usize..1 << 17, any::<u8>()), 0..8),
        length in 0_u64..3 << 20,
    ) {
        let scratch = Scratch::new();
        let source = scratch.path().join("source");
        let file = target(&source);
        for (offset, size, byte) in pieces {
            file.write_all_at(&vec![byte; size], offset).unwrap();
        }
        file.set_len(length).unwrap();
        let (sparse, full) = (scratch.path().join("sparse"), scratch.path().join("full"));
        sparse_copy(&file, &target(&sparse), unheard).unwrap();
        full_copy(&file, &target(&full), length, unheard).unwrap();
        let wanted = fs::read(&source).unwrap();
        prop_assert_eq!(&fs::read(sparse).unwrap(), &wanted);
        prop_assert_eq!(&fs::read(full).unwrap(), &wanted);
    }
}
