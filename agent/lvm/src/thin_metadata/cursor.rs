//! A walk along a B-tree in the order of its keys, from a key onwards.

use super::{
    block::{Device, ReadAhead},
    node::{self, Node, NodeKind, Place},
};
use crate::Result;

/// The most levels that a tree can have. Device-mapper uses at most 16 GiB of metadata, 2²² nodes, and of a node a third
/// is in use, 84 entries: no more than 5 levels. A tree with more has a node below itself.
const DEEPEST: usize = 8;

/// A tree: its root, the size of its values, and the largest key that it may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tree {
    pub(super) root: u64,
    pub(super) value_size: usize,
    pub(super) last: u64,
}

/// What a walk meets next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// A node that has not been read.
    Subtree {
        /// Its block.
        block: u64,
        /// The least key that the walk may meet in it.
        first: u64,
        /// Its height in the tree, 1 for leaves, if the tree is as high as the first path through it.
        height: usize,
    },
    /// An entry of a leaf.
    Entry {
        /// Its key.
        key: u64,
        /// Its value, or the beginning of that.
        number: u64,
    },
}

/// A node on the path of a walk.
#[derive(Debug)]
struct Level {
    node: Node,
    /// The entry that is next.
    next: usize,
    /// The largest key that its parent leaves to it.
    last: u64,
}

/// A walk. In memory are the nodes of one path, and what was read ahead.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    blocks: ReadAhead<'a>,
    tree: Tree,
    from: u64,
    /// The root, until it is read or skipped.
    root: Option<u64>,
    path: Vec<Level>,
    height: usize,
}

impl<'a> Cursor<'a> {
    /// A walk that begins with the first key that is not below `from`. Nothing is read yet.
    pub(super) fn new(device: &'a Device, tree: Tree, from: u64) -> Self {
        Self {
            blocks: ReadAhead::new(device),
            tree,
            from,
            root: Some(tree.root),
            path: Vec::new(),
            height: 0,
        }
    }

    /// Reads the first path to learn the height of the tree.
    pub(super) fn measure(&mut self) -> Result<()> {
        let mut probe = Self::new(self.blocks.device(), self.tree, 0);
        while let Some(Head::Subtree { .. }) = probe.head() {
            probe.expand()?;
        }
        self.height = probe.path.len();
        Ok(())
    }

    /// What is next; none at the end.
    pub(super) fn head(&mut self) -> Option<Head> {
        if let Some(block) = self.root {
            return Some(Head::Subtree {
                block,
                first: self.from,
                height: self.height,
            });
        }
        while self.path.pop_if(|level| level.is_over()).is_some() {}
        let level = self.path.last()?;
        let (key, number) = (level.node.key(level.next), level.node.number(level.next));
        Some(match level.node.kind() {
            NodeKind::Leaf => Head::Entry { key, number },
            NodeKind::Internal => Head::Subtree {
                block: number,
                first: key.max(self.from),
                height: self.height.saturating_sub(self.path.len()),
            },
        })
    }

    /// Leaves out what is next.
    pub(super) fn skip(&mut self) {
        match self.path.last_mut() {
            Some(level) => level.next += 1,
            None => self.root = None,
        }
    }

    /// Reads the node that is next; then the first of its entries is.
    pub(super) fn expand(&mut self) -> Result<()> {
        let (block, keys, place) = match (self.root, self.path.last()) {
            (Some(root), _) => (root, 0..=self.tree.last, Place::Root),
            (None, Some(level)) => {
                let keys = level.node.key(level.next)..=level.last_below();
                (level.node.number(level.next), keys, Place::Below)
            }
            (None, None) => return Ok(()),
        };
        let device = self.blocks.device();
        if self.path.len() == DEEPEST {
            return Err(device.corrupt(block, "it is below more nodes than a tree can have"));
        }
        let bytes = self.blocks.read(block)?;
        device.verify(block, bytes, node::SALT)?;
        let node = Node::parse(bytes, &keys, self.tree.value_size, place)
            .map_err(|why| device.corrupt(block, why))?;
        self.skip();
        self.path.push(Level {
            next: node.first_from(self.from),
            node,
            last: *keys.end(),
        });
        Ok(())
    }

    /// The next entry's key and number; none at the end.
    pub(super) fn next_entry(&mut self) -> Result<Option<(u64, u64)>> {
        loop {
            match self.head() {
                None => return Ok(None),
                Some(Head::Subtree { .. }) => self.expand()?,
                Some(Head::Entry { key, number }) => {
                    self.skip();
                    return Ok(Some((key, number)));
                }
            }
        }
    }

    /// The value of the entry with this key; none if there is none.
    pub(super) fn find(device: &'a Device, tree: Tree, key: u64) -> Result<Option<Vec<u8>>> {
        let mut walk = Self::new(device, tree, key);
        while let Some(Head::Subtree { .. }) = walk.head() {
            walk.expand()?;
        }
        let found = walk.path.last().filter(|level| {
            // The walk may have gone on to a larger key.
            level.node.key(level.next) == key
        });
        Ok(found.map(|level| level.node.value(level.next).to_vec()))
    }
}

impl Level {
    fn is_over(&self) -> bool {
        self.next >= self.node.entries()
    }

    /// The largest key that may be below the next entry.
    fn last_below(&self) -> u64 {
        let behind = self.next + 1;
        if behind < self.node.entries() {
            // Keys ascend, so that this one is not 0.
            self.node.key(behind).saturating_sub(1)
        } else {
            self.last
        }
    }
}
