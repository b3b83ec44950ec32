//! The metadata of a volume group, read from its disks without a program.
//!
//! One small read per disk shows whether anything has changed since the last time; only then is the text read.

mod disk;
mod group;
mod losses;
mod reader;
mod scan;
mod segment;
#[cfg(test)]
mod tests;
mod text;

pub use group::{
    Area, GroupMetadata, LogicalVolume, Message, PhysicalVolume, Pool, Segment, VolumeKind,
    read_all, unknown_flag,
};
pub use reader::Reader;
pub use scan::{FoundGroup, Scan, scan};
