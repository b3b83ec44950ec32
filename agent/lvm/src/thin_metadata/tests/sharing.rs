//! Nodes that two trees share are not read.

use std::{fs::File, os::unix::fs::FileExt};

use super::{
    image::{Image, Split},
    model::{Map, differing, numbers, write},
};
use crate::{ThinBlocks, ThinMetadata, ThinView, host::testing::Scratch};

/// The root of the mapping tree of each device.
fn roots(image: &Image, maps: [(&Map, Split); 2]) -> [u64; 2] {
    let mut copy = Image::new();
    // Written once more, in the same order, they are at the same blocks.
    let roots = maps.map(|(map, split)| copy.mapping_tree(map, split));
    assert!(
        roots
            .iter()
            .all(|root| copy.block(*root) == image.block(*root))
    );
    roots
}

/// Two devices, split in their ways: their difference is right although every node that they share is overwritten,
/// but for the first path, which shows how high the trees are. Returns the heights of the trees.
fn shared_nodes_are_skipped(base: (&Map, Split), target: (&Map, Split)) -> [usize; 2] {
    let scratch = Scratch::new();
    let path = scratch.path().join("metadata");
    let pool = vec![base.0.clone(), target.0.clone()];
    let image = write(&path, &pool, &[base.1, target.1]);
    let roots = roots(&image, [base, target]);
    let [old, new] = roots.map(|root| image.reachable(root));
    let first = roots.map(|root| image.first_path(root));
    let shared: Vec<u64> = old
        .intersection(&new)
        .filter(|block| !first.iter().flatten().any(|other| other == *block))
        .copied()
        .collect();
    assert!(
        shared.len() * 2 > old.len(),
        "{} of {}",
        shared.len(),
        old.len()
    );
    let file = File::options().write(true).open(&path).unwrap();
    for block in shared {
        file.write_all_at(&[0xa5; 4096], block * 4096).unwrap();
    }
    let metadata = ThinMetadata::open(&path, ThinView::LastCommit).unwrap();
    for from in [0, 700, 1500] {
        let found = metadata.differing(1, 2, ThinBlocks(from)).unwrap();
        let expected = differing(base.0, target.0, from);
        assert_eq!(numbers(found).unwrap(), expected, "{from}");
    }
    assert!(numbers(metadata.mapped(1, ThinBlocks::ZERO).unwrap()).is_err());
    first.map(|path| path.len())
}

fn device() -> Map {
    (0..2000).map(|block| (block, (block + 5000, 1))).collect()
}

const SPLIT: Split = Split {
    room: 9,
    leaves: 3,
    above: 4,
};

#[test]
fn below_equal_nodes_nothing_is_read() {
    let base = device();
    let mut target = base.clone();
    target.insert(800, (1, 2));
    target.remove(&1600);
    target.insert(3000, (2, 2));
    shared_nodes_are_skipped((&base, SPLIT), (&target, SPLIT));
}

#[test]
fn leaves_below_different_nodes_are_not_read() {
    let base = device();
    let mut target = base.clone();
    target.insert(800, (1, 2));
    let other = Split { above: 5, ..SPLIT };
    shared_nodes_are_skipped((&base, SPLIT), (&target, other));
}

#[test]
fn shared_nodes_of_trees_of_different_heights_are_not_read() {
    let base = device();
    let mut target = base.clone();
    target.extend((2000..20_000).map(|block| (block, (block, 2))));
    let heights = shared_nodes_are_skipped((&base, SPLIT), (&target, SPLIT));
    assert!(heights[0] < heights[1], "{heights:?}");
    let heights = shared_nodes_are_skipped((&base, SPLIT), (&target, Split { above: 6, ..SPLIT }));
    assert!(heights[0] < heights[1], "{heights:?}");
}

#[test]
fn a_device_does_not_differ_from_itself_and_nothing_of_it_is_read() {
    let scratch = Scratch::new();
    let path = scratch.path().join("metadata");
    let base = device();
    let image = write(&path, &vec![base.clone(), base.clone()], &[SPLIT, SPLIT]);
    let [root, _] = roots(&image, [(&base, SPLIT), (&base, SPLIT)]);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 4096], root * 4096).unwrap();
    let metadata = ThinMetadata::open(&path, ThinView::LastCommit).unwrap();
    for target in [1, 2] {
        let found = metadata.differing(1, target, ThinBlocks::ZERO).unwrap();
        assert_eq!(numbers(found).unwrap(), []);
    }
}
