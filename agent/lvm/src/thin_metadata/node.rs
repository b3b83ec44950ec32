//! The nodes of the B-trees.

use std::ops::RangeInclusive;

use super::block::{BLOCK, index, u32_at, u64_at};

/// `BTREE_CSUM_XOR`.
pub(super) const SALT: u32 = 121_107;
/// The size of a node's header; the keys follow, and then the values, each with room for as many as fit.
pub(super) const HEADER: usize = 32;
/// The size of a key, and of the block numbers that are the values of internal nodes.
const NUMBER: usize = 8;

/// A kind of node, by its flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeKind {
    /// Its values are the blocks of other nodes.
    Internal,
    /// Its values are those of the tree.
    Leaf,
}

/// The place of a node in its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Only here is a leaf without entries allowed: the tree is empty.
    Root,
    /// Below another node.
    Below,
}

/// A valid node: its entries are inside it, and its keys ascend.
#[derive(Debug)]
pub(super) struct Node {
    bytes: Box<[u8]>,
    kind: NodeKind,
    entries: usize,
    values: usize,
    value_size: usize,
}

impl Node {
    /// Parses a block with a verified checksum. `keys` are those that its parent leaves to it, and `value_size` is that
    /// of the tree's values.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub(super) fn parse(
        bytes: &[u8],
        keys: &RangeInclusive<u64>,
        value_size: usize,
        place: Place,
    ) -> Result<Self, String> {
        let kind = match u32_at(bytes, 4) {
            1 => NodeKind::Internal,
            2 => NodeKind::Leaf,
            flags => return Err(format!("a node has the flags {flags:#x}")),
        };
        let wanted = match kind {
            NodeKind::Internal => NUMBER,
            NodeKind::Leaf => value_size,
        };
        let number = |at| index(u32_at(bytes, at).into());
        let (entries, room, value_size) = (number(16), number(20), number(24));
        if value_size != wanted {
            return Err(format!("it has values of {value_size} bytes, not {wanted}"));
        }
        let size = room
            .saturating_mul(NUMBER + value_size)
            .saturating_add(HEADER);
        if entries > room || size > BLOCK {
            return Err(format!(
                "it has {entries} entries, and room for {room}, which is impossible"
            ));
        }
        if entries == 0 && (kind, place) != (NodeKind::Leaf, Place::Root) {
            return Err("it has no entries".to_owned());
        }
        let node = Self {
            bytes: bytes.into(),
            kind,
            entries,
            values: HEADER + room * NUMBER,
            value_size,
        };
        node.verify_keys(keys)?;
        Ok(node)
    }

    fn verify_keys(&self, wanted: &RangeInclusive<u64>) -> Result<(), String> {
        let mut lowest = *wanted.start();
        for at in 0..self.entries {
            let key = self.key(at);
            if key < lowest || key > *wanted.end() {
                let (start, end) = wanted.clone().into_inner();
                return Err(format!(
                    "key {key} does not ascend within {start} to {end}, which are left to this node"
                ));
            }
            // The last key may be the largest number; nothing can follow it, and nothing does.
            lowest = match key.checked_add(1) {
                Some(next) => next,
                None if at + 1 == self.entries => break,
                None => return Err(format!("key {key} is not the last one")),
            };
        }
        Ok(())
    }

    pub(super) fn kind(&self) -> NodeKind {
        self.kind
    }

    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// The key of an entry. In an internal node: the least that may be below it.
    pub(super) fn key(&self, at: usize) -> u64 {
        u64_at(&self.bytes, HEADER + at * NUMBER)
    }

    /// The value of an entry, or its beginning, as a number.
    pub(super) fn number(&self, at: usize) -> u64 {
        u64_at(&self.bytes, self.values + at * self.value_size)
    }

    /// The value of an entry.
    pub(super) fn value(&self, at: usize) -> &[u8] {
        let start = self.values + at * self.value_size;
        let value = self.bytes.get(start..start + self.value_size);
        value.unwrap_or_default()
    }

    /// The first entry of interest to a walk that begins at `key`: in a leaf the first that is not below it, in an
    /// internal node the one that `key` would be in.
    pub(super) fn first_from(&self, key: u64) -> usize {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.key(middle) < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let is_within = low < self.entries && self.key(low) == key;
        match self.kind {
            NodeKind::Internal if !is_within => low.saturating_sub(1),
            _ => low,
        }
    }
}
