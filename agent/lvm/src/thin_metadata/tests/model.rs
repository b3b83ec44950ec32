//! What metadata says, by a simple model: the maps themselves.

use std::{collections::BTreeMap, fs, ops::Range, path::Path};

use super::image::{Image, Split};
use crate::{Result, ThinBlocks, ThinMetadata, ThinRuns, ThinView};

/// The mappings of a device: the data block and the time of each virtual block.
pub(super) type Map = BTreeMap<u64, (u64, u32)>;

/// The mappings of a pool's devices; their numbers begin with 1.
pub(super) type Pool = Vec<Map>;

/// Numbers that look random and are the same in each run.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// The next one, below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// An index below `end`.
    pub(super) fn index(&mut self, end: u64) -> usize {
        usize::try_from(self.below(end)).unwrap()
    }

    /// By `SplitMix64`.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }
}

/// A number in which every bit depends on each of the other one.
pub(super) fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Numbers as merged runs.
pub(super) fn runs(blocks: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(run) if run.end == block => run.end += 1,
            _ => runs.push(block..block + 1),
        }
    }
    runs
}

pub(super) fn mapped(map: &Map, from: u64) -> Vec<Range<u64>> {
    runs(map.range(from..).map(|(block, _)| *block))
}

pub(super) fn differing(base: &Map, target: &Map, from: u64) -> Vec<Range<u64>> {
    let all = base.keys().chain(target.keys());
    let all: std::collections::BTreeSet<_> = all.copied().filter(|block| *block >= from).collect();
    let data = |map: &Map, block: u64| map.get(&block).map(|(data, _)| *data);
    runs(
        all.into_iter()
            .filter(|block| data(base, *block) != data(target, *block)),
    )
}

/// All runs, as numbers.
pub(super) fn numbers(runs: ThinRuns<'_>) -> Result<Vec<Range<u64>>> {
    runs.map(|run| run.map(|run| run.start.0..run.end.0))
        .collect()
}

/// The device with this index.
pub(super) fn number(index: usize) -> u64 {
    u64::try_from(index).unwrap() + 1
}

/// Writes the metadata of a pool, each device's tree split in its own way.
pub(super) fn write(path: &Path, pool: &Pool, splits: &[Split]) -> Image {
    let mut image = Image::new();
    let trees = pool.iter().zip(splits).map(|(map, split)| {
        let root = image.mapping_tree(map, *split);
        (root, map.len())
    });
    let trees: Vec<_> = trees.collect();
    image.finish(&trees);
    fs::write(path, image.bytes()).unwrap();
    image
}

/// Compares what metadata says of each device, and of its difference to the next one, with the model, from a block onwards.
pub(super) fn compare(path: &Path, view: ThinView, pool: &Pool, from: u64) {
    let metadata = ThinMetadata::open(path, view).unwrap();
    let start = ThinBlocks(from);
    for (at, map) in pool.iter().enumerate() {
        let found = metadata.mapped(number(at), start).unwrap();
        assert_eq!(numbers(found).unwrap(), mapped(map, from), "{at} {from}");
        let count = metadata.device(number(at)).unwrap().mapped_blocks.0;
        assert_eq!(count, u64::try_from(map.len()).unwrap());
        let other = (at + 1) % pool.len();
        let found = metadata.differing(number(at), number(other), start);
        assert_eq!(
            numbers(found.unwrap()).unwrap(),
            differing(map, &pool[other], from),
            "{at} and {other} from {from}"
        );
    }
    metadata.verify_unchanged().unwrap();
}
