//! Ends of images, block devices, and images that do not stay.

use std::{
    fs::{self, File},
    ops::{ControlFlow, Range},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{
    checks::{check_differing, found, found_allocated, found_differing},
    history::{Ground, MIB, new_file},
};
use crate::{
    Access, FileSystem, Kind,
    changed::{Pair, Sink, allocated, differing, differing_in},
    copy::reflink,
    loop_device::attach,
    testing::Scratch,
};

/// A file of these bytes at these offsets, and of this size.
fn file(directory: &Path, name: &str, size: u64, data: &[(u64, &[u8])]) -> PathBuf {
    let path = directory.join(name);
    let file = new_file(&path);
    for (offset, bytes) in data {
        file.write_all_at(bytes, *offset).unwrap();
    }
    file.set_len(size).unwrap();
    path
}

fn pairs(ranges: &[Range<u64>]) -> Vec<(u64, u64)> {
    ranges
        .iter()
        .map(|range| (range.start, range.end))
        .collect()
}

#[test]
fn data_is_found_from_the_offset_on() {
    let scratch = Scratch::new();
    let block = [1; 4096];
    let data: [(u64, &[u8]); 3] = [(0, &block), (MIB, &block), (MIB + 4096, &block[..10])];
    let path = file(&scratch.path(), "image", 2 * MIB + 100, &data);
    let all = |start| pairs(&found_allocated(&path, start));
    assert_eq!(all(0), [(0, 4096), (MIB, MIB + 8192)]);
    assert_eq!(all(4095), [(4095, 4096), (MIB, MIB + 8192)]);
    assert_eq!(all(4096), [(MIB, MIB + 8192)]);
    assert_eq!(all(MIB + 5000), [(MIB + 5000, MIB + 8192)]);
    for start in [MIB + 8192, 2 * MIB, 2 * MIB + 100, 9 * MIB, u64::MAX] {
        assert_eq!(all(start), [], "{start}");
    }
    let empty = file(&scratch.path(), "empty", 0, &[]);
    assert_eq!(found_allocated(&empty, 0), []);
}

#[test]
fn a_part_of_a_block_at_the_end_is_compared_and_what_grew_differs() {
    let ext4 = Scratch::new();
    for (number, (base, target)) in [
        (10_000, 10_000),
        (10_000, 10_001),
        (10_001, 10_000),
        (10_000, 30_000),
        (8192, 8193),
        (8192, 12_288),
        (0, 5000),
        (5000, 0),
        (0, 0),
        (600_000, 600_100),
    ]
    .into_iter()
    .enumerate()
    {
        let directory = ext4.directory(&number.to_string());
        let base = &file(&directory, "base", base, &[(0, b"a"), (9999, b"b")]);
        let target = &file(&directory, "target", target, &[(0, b"a"), (9999, b"c")]);
        let (before, now) = (fs::read(base).unwrap(), fs::read(target).unwrap());
        for start in [0, 1, 4096, 9000] {
            let ranges = found_differing(Pair { base, target }, start);
            check_differing((&before, &now), start, &ranges)
                .unwrap_or_else(|wrong| panic!("{number}, {start}: {wrong}"));
        }
    }
}

#[test]
fn zeros_are_the_same_as_a_hole() {
    for ground in [Ground::of(FileSystem::Ext4), Ground::of(FileSystem::Xfs)] {
        let directory = &ground.path();
        let zeros = vec![0; 64 << 10];
        let base = &file(directory, "base", MIB, &[(MIB / 2, &zeros)]);
        let target = &file(directory, "target", MIB, &[(0, &zeros), (MIB / 4, &[1])]);
        let wanted = [(MIB / 4, MIB / 4 + 4096)];
        assert_eq!(pairs(&found_differing(Pair { base, target }, 0)), wanted);
        let turned = Pair {
            base: target,
            target: base,
        };
        assert_eq!(pairs(&found_differing(turned, 0)), wanted);
    }
}

#[test]
fn only_candidates_are_compared_and_their_order_is_checked() {
    let scratch = Scratch::new();
    let base = &file(&scratch.path(), "base", MIB, &[]);
    let ones = vec![1; 1 << 20];
    let target = &file(&scratch.path(), "target", MIB, &[(0, &ones)]);
    let pair = Pair { base, target };
    let search = |candidates: &[Range<u64>], start| {
        let mut candidates = candidates.iter().cloned().map(Ok);
        found(|sink| differing_in(pair, &mut candidates, start, sink))
    };
    let candidates = [
        5..6,
        4096..8193,
        8192..16_384,
        65_536..65_536,
        MIB - 1..9 * MIB,
    ];
    let all = pairs(&search(&candidates, 0).unwrap());
    assert_eq!(all, [(0, 16_384), (MIB - 4096, MIB)]);
    let some = pairs(&search(&candidates, 5000).unwrap());
    assert_eq!(some, [(5000, 16_384), (MIB - 4096, MIB)]);
    let error = search(&[8192..12_288, 0..4096], 0).unwrap_err();
    assert_eq!(error.kind(), Kind::Bug);
}

#[test]
fn block_devices_are_compared_too() {
    let scratch = Scratch::new();
    let size = 2 * MIB + 512;
    let base = file(&scratch.path(), "base", size, &[(0, b"a"), (MIB, b"b")]);
    let target = file(
        &scratch.path(),
        "target",
        size,
        &[(0, b"a"), (size - 1, b"c")],
    );
    let devices = [base, target].map(|image| attach(&image, Access::ReadOnly).unwrap());
    let [base, target] = &devices.map(|device| device.path);
    let pair = Pair { base, target };
    let wanted = [(MIB, MIB + 4096), (2 * MIB, size)];
    assert_eq!(pairs(&found_differing(pair, 0)), wanted);
    assert_eq!(pairs(&found_allocated(target, 100)), [(100, size)]);
    let mut candidates = [0..1, MIB + 4096..size].into_iter().map(Ok);
    let some = found(|sink| differing_in(pair, &mut candidates, 0, sink)).unwrap();
    assert_eq!(pairs(&some), [(2 * MIB, size)]);
}

#[test]
fn a_sink_that_has_enough_gets_no_more() {
    let scratch = Scratch::new();
    let data: [(u64, &[u8]); 3] = [(0, b"a"), (MIB, b"b"), (2 * MIB, b"c")];
    let base = &file(&scratch.path(), "base", 3 * MIB, &[]);
    let target = &file(&scratch.path(), "target", 3 * MIB, &data);
    let pair = Pair { base, target };
    let mut count = 0;
    let mut sink = |_| {
        count += 1;
        Ok(ControlFlow::Break(()))
    };
    allocated(target, 0, &mut sink).unwrap();
    differing(pair, 0, &mut sink).unwrap();
    differing_in(pair, &mut [Ok(0..u64::MAX)].into_iter(), 0, &mut sink).unwrap();
    assert_eq!(count, 3);
    let mut sink = |_| Err(crate::Error::invalid("the other end is closed"));
    let error = differing(pair, 0, &mut sink).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
}

/// A base and a target with 1 MiB that differs in its first block, and is else of `rest`.
fn alike(ground: &Ground, rest: u8) -> (PathBuf, PathBuf) {
    let [base, target] = ["base", "target"].map(|name| ground.path().join(name));
    for path in [&base, &target] {
        let _ = fs::remove_file(path);
    }
    let data = vec![rest; 2 << 20];
    file(
        &ground.path(),
        "base",
        4 * MIB,
        &[(8192, &data[..usize::from(rest) << 20])],
    );
    let shared = new_file(&target);
    if matches!(
        reflink(&File::open(&base).unwrap(), &shared),
        Ok(crate::copy::Reflink::Unsupported)
    ) {
        fs::copy(&base, &target).unwrap();
    }
    shared.write_all_at(&[9; 4096], 0).unwrap();
    // So that the first range is handed out before the rest is compared.
    shared.write_all_at(&[8; 4096], 8192).unwrap();
    (base, target)
}

#[test]
fn a_file_that_becomes_shorter_meanwhile_is_an_error_and_not_the_same() {
    for ground in [Ground::of(FileSystem::Ext4), Ground::of(FileSystem::Xfs)] {
        // Data behind the new end, or a hole.
        for (rest, flow) in [1, 0]
            .into_iter()
            .zip([ControlFlow::Continue(()), ControlFlow::Break(())])
        {
            for which in ["base", "target"] {
                let (base, target) = &alike(&ground, rest);
                let victim = ground.path().join(which);
                let mut shorten = |_| {
                    File::options()
                        .write(true)
                        .open(&victim)
                        .unwrap()
                        .set_len(MIB)
                        .unwrap();
                    Ok(flow)
                };
                let sink: &mut dyn Sink = &mut shorten;
                let pair = Pair { base, target };
                let error = differing(pair, 0, sink).unwrap_err();
                assert_eq!(error.kind(), Kind::Io);
                let text = error.to_string();
                assert!(text.contains(victim.to_str().unwrap()), "{text}");
                assert!(text.contains("became shorter"), "{text}");
            }
        }
    }
    let scratch = Scratch::new();
    let path = file(&scratch.path(), "image", 2 * MIB, &[(0, b"a")]);
    let mut shorten = |_| {
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(MIB)
            .unwrap();
        Ok(ControlFlow::Continue(()))
    };
    assert!(allocated(&path, 0, &mut shorten).is_err());
}

#[test]
fn an_image_that_cannot_be_read_is_named() {
    let scratch = Scratch::new();
    let (missing, directory) = (scratch.path().join("missing"), scratch.path());
    for path in [&missing, &directory] {
        let pair = Pair {
            base: path,
            target: path,
        };
        let error = found(|sink| differing(pair, 0, sink)).unwrap_err();
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
}
