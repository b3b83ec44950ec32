//! A writer of metadata: equal nodes are one, so that trees share what they have in common.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
};

use super::model::{Map, mixed};
use crate::thin_metadata::{
    block::{BLOCK, checksum, u32_at, u64_at},
    node::{self, HEADER},
    superblock,
};

const INTERNAL: u32 = 1;
const LEAF: u32 = 2;
/// The block of the metadata snapshot's superblock.
pub(super) const SNAPSHOT: u64 = 1;

/// How a tree is split into nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split {
    /// Room for entries in a node, a multiple of three.
    pub(super) room: usize,
    /// Decides where leaves end. Where it is the same, equal mappings are in equal leaves.
    pub(super) leaves: u64,
    /// Decides where nodes above them end.
    pub(super) above: u64,
}

/// Metadata in memory.
pub(super) struct Image {
    blocks: Vec<Vec<u8>>,
    known: HashMap<Vec<u8>, u64>,
}

impl Image {
    pub(super) fn new() -> Self {
        Self {
            // Both superblocks.
            blocks: vec![vec![0; BLOCK]; 2],
            known: HashMap::new(),
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.blocks.concat()
    }

    pub(super) fn block(&self, block: u64) -> &[u8] {
        &self.blocks[usize::try_from(block).unwrap()]
    }

    pub(super) fn mapping_tree(&mut self, map: &Map, split: Split) -> u64 {
        let entries = map.iter().map(|(block, (data, time))| {
            let value = (data << 24) | u64::from(*time);
            (*block, value.to_le_bytes().to_vec())
        });
        self.tree(entries.collect(), 8, split)
    }

    /// Writes a tree; returns its root.
    pub(super) fn tree(
        &mut self,
        mut entries: Vec<(u64, Vec<u8>)>,
        value_size: usize,
        split: Split,
    ) -> u64 {
        let (mut kind, mut size, mut salt) = (LEAF, value_size, split.leaves);
        loop {
            let parts = parts(&entries, split.room, salt);
            let nodes: Vec<_> = parts
                .into_iter()
                .map(|part| {
                    let part = &entries[part];
                    let block = self.node(kind, split.room, size, part);
                    let first = part.first().map_or(0, |(key, _)| *key);
                    (first, block.to_le_bytes().to_vec())
                })
                .collect();
            if let [(_, root)] = nodes.as_slice() {
                return u64_at(root, 0);
            }
            (entries, kind, size, salt) = (nodes, INTERNAL, 8, split.above);
        }
    }

    /// Writes a node, unless there is one that is equal; returns its block.
    pub(super) fn node(
        &mut self,
        kind: u32,
        room: usize,
        value_size: usize,
        entries: &[(u64, Vec<u8>)],
    ) -> u64 {
        let mut bytes = vec![0; BLOCK];
        let count = entries.len();
        put(&mut bytes, 4, &kind.to_le_bytes());
        for (at, number) in [(16, count), (20, room), (24, value_size)] {
            let number = u32::try_from(number).unwrap();
            put(&mut bytes, at, &number.to_le_bytes());
        }
        for (at, (key, value)) in entries.iter().enumerate() {
            put(&mut bytes, HEADER + at * 8, &key.to_le_bytes());
            put(&mut bytes, HEADER + room * 8 + at * value_size, value);
        }
        let block = u64::try_from(self.blocks.len()).unwrap();
        if let Some(known) = self.known.get(&bytes) {
            return *known;
        }
        self.known.insert(bytes.clone(), block);
        put(&mut bytes, 8, &block.to_le_bytes());
        seal(&mut bytes, node::SALT);
        self.blocks.push(bytes);
        block
    }

    /// Writes both superblocks over mapping trees and their numbers of mappings.
    pub(super) fn finish(&mut self, trees: &[(u64, usize)]) {
        let split = Split {
            room: 126,
            leaves: 0,
            above: 0,
        };
        let all = || (1_u64..).zip(trees);
        let roots = all().map(|(number, (root, _))| (number, root.to_le_bytes().to_vec()));
        let mappings = self.tree(roots.collect(), 8, split);
        let details = all().map(|(number, (_, count))| {
            let mut details = vec![0; 24];
            put(&mut details, 0, &count.to_le_bytes());
            put(&mut details, 8, &(number + 100).to_le_bytes());
            put(&mut details, 16, &3_u32.to_le_bytes());
            put(&mut details, 20, &4_u32.to_le_bytes());
            (number, details)
        });
        let details = self.tree(details.collect(), 24, split);
        self.superblock(superblock::LOCATION, SNAPSHOT, (mappings, details));
        self.superblock(SNAPSHOT, 0, (mappings, details));
    }

    fn superblock(&mut self, block: u64, snapshot: u64, (mappings, details): (u64, u64)) {
        let count = u64::try_from(self.blocks.len()).unwrap();
        let bytes = &mut self.blocks[usize::try_from(block).unwrap()];
        for (at, number) in [
            (8, block),
            (32, superblock::MAGIC),
            (48, 9),
            (56, snapshot),
            (320, mappings),
            (328, details),
            (344, count),
        ] {
            put(bytes, at, &number.to_le_bytes());
        }
        for (at, number) in [(40, 2_u32), (44, 5), (336, 128), (340, 8)] {
            put(bytes, at, &number.to_le_bytes());
        }
        seal(bytes, superblock::SALT);
    }

    /// The blocks of a tree.
    pub(super) fn reachable(&self, root: u64) -> BTreeSet<u64> {
        let mut all = BTreeSet::from([root]);
        let bytes = self.block(root);
        if u32_at(bytes, 4) == INTERNAL {
            let number = |at| usize::try_from(u32_at(bytes, at)).unwrap();
            let values = HEADER + number(20) * 8;
            for at in 0..number(16) {
                all.extend(self.reachable(u64_at(bytes, values + at * 8)));
            }
        }
        all
    }

    /// The blocks of the path to a tree's first leaf.
    pub(super) fn first_path(&self, root: u64) -> Vec<u64> {
        let mut path = vec![root];
        loop {
            let bytes = self.block(path[path.len() - 1]);
            if u32_at(bytes, 4) == LEAF {
                return path;
            }
            let capacity = usize::try_from(u32_at(bytes, 20)).unwrap();
            path.push(u64_at(bytes, HEADER + capacity * 8));
        }
    }
}

/// Splits entries into nodes that are at least a third full, at places that the keys decide.
fn parts(entries: &[(u64, Vec<u8>)], room: usize, salt: u64) -> Vec<Range<usize>> {
    let least = room / 3;
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut begun = 0;
    for (at, (key, _)) in entries.iter().enumerate() {
        let length = at - begun;
        let ends = mixed(*key ^ salt).is_multiple_of(u64::try_from(room).unwrap() / 2);
        if length == room || (length >= least && ends) {
            parts.push(begun..at);
            begun = at;
        }
    }
    parts.push(begun..entries.len());
    if let [.., before, last] = parts.as_mut_slice()
        && last.len() < least
    {
        if before.len() + last.len() > room {
            let middle = usize::midpoint(before.start, last.end);
            (before.end, last.start) = (middle, middle);
        } else {
            before.end = last.end;
            parts.pop();
        }
    }
    parts
}

pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Writes a block's checksum.
pub(super) fn seal(bytes: &mut [u8], salt: u32) {
    let sum = checksum(bytes, salt);
    put(bytes, 0, &sum.to_le_bytes());
}
