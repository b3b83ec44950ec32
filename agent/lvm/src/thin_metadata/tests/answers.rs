//! Small pools, made by `thin_restore`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    model::{Map, Pool, compare, differing, numbers},
    tools::{delta, dump, restore},
};
use crate::{
    Kind, ThinBlocks, ThinDevice, ThinMetadata, ThinView,
    host::{Sectors, testing::Scratch},
};

/// Consecutive mappings to data blocks from `data` onwards.
fn range(blocks: std::ops::Range<u64>, data: u64) -> Map {
    blocks
        .zip(data..)
        .map(|(block, data)| (block, (data, 1)))
        .collect()
}

/// Compares metadata with the model and with the tools.
fn compare_all(path: &Path, pool: &Pool, starts: &[u64]) {
    for from in starts {
        compare(path, ThinView::LastCommit, pool, *from);
    }
    for (number, map) in (1..).zip(pool) {
        assert_eq!(dump(&[], path, number), *map);
        for (other, target) in (1..).zip(pool).filter(|(other, _)| *other != number) {
            let found = delta(&[], path, number, other);
            assert_eq!(found, differing(map, target, 0));
        }
    }
}

#[test]
fn what_is_mapped_and_differs_is_what_the_tools_find() {
    let scratch = Scratch::new();
    let path = scratch.path().join("metadata");
    // Ranges that touch each other in one device alone, over several leaves.
    let many: Map = (0..3000).step_by(3).map(|at| (at, (at * 7, 2))).collect();
    let mut other = range(0..2000, 100_000);
    other.extend(range(2500..2600, 50_000));
    let pool = vec![
        Map::new(),
        range(12_345_678..12_345_679, 4),
        range(0..4000, 0),
        many,
        other,
    ];
    restore(&path, &pool);
    compare_all(
        &path,
        &pool,
        &[0, 1, 1999, 2000, 3000, 12_345_678, 12_345_679, u64::MAX],
    );
}

#[test]
fn hundreds_of_devices_are_found_by_their_numbers() {
    let scratch = Scratch::new();
    let path = scratch.path().join("metadata");
    // Their trees have several nodes.
    let pool: Pool = (0..400).map(|at| range(at..at + 2, at * 2)).collect();
    restore(&path, &pool);
    let metadata = ThinMetadata::open(&path, ThinView::LastCommit).unwrap();
    for number in 1..=400 {
        let found = metadata.mapped(number, ThinBlocks::ZERO).unwrap();
        let run = number - 1..number + 1;
        assert_eq!(numbers(found).unwrap(), vec![run]);
        let expected = ThinDevice {
            mapped_blocks: ThinBlocks(2),
            transaction_id: number + 100,
            creation_time: 3,
            snapshotted_time: 4,
        };
        assert_eq!(metadata.device(number).unwrap(), expected);
    }
    for number in [0, 401, u64::MAX] {
        let error = metadata.mapped(number, ThinBlocks::ZERO).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{number}");
        let error = metadata.device(number).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{number}");
    }
    assert_eq!(metadata.block_size(), Sectors(128));
    assert_eq!(metadata.transaction_id(), 9);
}

#[test]
fn metadata_that_is_none_or_has_no_snapshot_is_refused() {
    let scratch = Scratch::new();
    let file = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = scratch.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let refused = |path: &Path, view, kind, text: &str| {
        let error = ThinMetadata::open(path, view).unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.to_string().contains(text), "{error:?}");
    };
    let last = ThinView::LastCommit;
    let missing = scratch.path().join("missing");
    refused(&missing, last, Kind::Io, "missing");
    let empty = file("empty", &[]);
    refused(&empty, last, Kind::Precondition, "behind the end");
    let zeros = file("zeros", &[0; 8192]);
    refused(&zeros, last, Kind::Precondition, "not a superblock");
    let path = scratch.path().join("metadata");
    restore(&path, &vec![range(0..10, 0)]);
    let snapshot = ThinView::MetadataSnapshot;
    refused(&path, snapshot, Kind::Precondition, "no metadata snapshot");
}

#[test]
fn a_change_while_it_is_read_is_noticed() {
    let scratch = Scratch::new();
    let path = scratch.path().join("metadata");
    restore(&path, &vec![range(0..10, 0)]);
    let metadata = ThinMetadata::open(&path, ThinView::LastCommit).unwrap();
    metadata.verify_unchanged().unwrap();
    let other = scratch.path().join("other");
    restore(&other, &vec![range(0..11, 0)]);
    fs::write(&path, fs::read(&other).unwrap()).unwrap();
    let error = metadata.verify_unchanged().unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{error:?}");
    // Not even a superblock is there.
    fs::write(&path, [0; 8192]).unwrap();
    let error = metadata.verify_unchanged().unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{error:?}");
}
