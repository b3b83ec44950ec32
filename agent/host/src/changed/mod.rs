//! Which byte ranges of an image hold data, and which differ from those of another image.
//!
//! Images are files or block devices that do not change meanwhile, such as snapshots. Ranges are in ascending order,
//! merged, and of whole blocks of [`BLOCK`] bytes, except where the image ends or the search starts within a block.
//! All that differs is found, and a part of a block that differs is the whole block.
//!
//! Bytes are the truth. What file systems know of their files only says what need not be read: holes of both
//! (`SEEK_DATA`), and blocks that both share (`FIEMAP`), as long as nothing about them is in doubt.
//!
//! ```no_run
//! use std::{ops::ControlFlow, path::Path};
//!
//! use drumlin_host::{changed::{Pair, differing_in}, overwritten::Overwritten};
//!
//! # fn example() -> drumlin_host::Result<()> {
//! // A thick snapshot and a later one: only what the store of the first names can differ.
//! let mut candidates = Overwritten::of(Path::new("/dev/mapper/vg-first-cow"))?;
//! let pair = Pair {
//!     base: Path::new("/dev/mapper/vg-first"),
//!     target: Path::new("/dev/mapper/vg-second"),
//! };
//! differing_in(pair, &mut candidates, 0, &mut |range| {
//!     println!("{range:?}");
//!     Ok(ControlFlow::Continue(()))
//! })
//! # }
//! ```
//!
//! **Invariant:** memory does not depend on the size of an image, nor on its number of extents: two buffers, three
//! pages of extents and one range.

mod allocated;
mod block;
mod comparison;
mod data;
mod differing;
mod image;
mod same_blocks;
mod sink;
#[cfg(test)]
mod tests;

pub use allocated::allocated;
pub use block::BLOCK;
pub use differing::{Pair, differing, differing_in};
pub use sink::Sink;
