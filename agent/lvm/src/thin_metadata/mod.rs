//! The metadata of a thin pool: which blocks of a thin device are mapped, and which differ between two of them.
//!
//! A pool keeps a B-tree of mappings for each of its thin devices. What is changed is copied first, so that two
//! snapshots of one device share the nodes that have not changed since, by block number. A comparison skips these
//! without reading them: it takes as long as there are differences, not as long as the device is large.
//!
//! The format is that of `drivers/md/dm-thin-metadata.c` and `drivers/md/persistent-data/dm-btree-internal.h`. Every
//! block has a checksum and its own number; both are verified of each block that is read.

mod block;
mod cursor;
mod node;
mod runs;
mod superblock;
#[cfg(test)]
mod tests;
mod view;

pub use runs::ThinRuns;
pub use view::{ThinDevice, ThinMetadata, ThinView};
