//! The superblock of the metadata, and its copy that is the root of a metadata snapshot.

use super::block::{Device, ReadAhead, u32_at, u64_at};
use crate::{Error, Kind, Result, host::Sectors};

/// The block of the superblock itself.
pub(super) const LOCATION: u64 = 0;
/// `SUPERBLOCK_CSUM_XOR`.
pub(super) const SALT: u32 = 160_774;
/// `THIN_SUPERBLOCK_MAGIC`.
pub(super) const MAGIC: u64 = 27_022_010;
/// Kernels wrote version 1 and now write 2; the format is the same.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=2;
/// The limits of a pool's blocks, in sectors: 64 KiB to 1 GiB, in steps of 64 KiB.
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 128..=1 << 21;
const BLOCK_SIZE_STEP: u32 = 128;
/// The size of a metadata block in sectors, in the superblock.
const METADATA_BLOCK: u32 = 8;

/// A superblock. Two that are equal describe the same metadata: its checksum covers all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Superblock {
    checksum: u32,
    /// The transaction id that LVM has given the pool.
    pub(super) transaction: u64,
    /// The block of the metadata snapshot's superblock; 0 for none.
    pub(super) snapshot: u64,
    /// The root of the tree of the mapping trees, by device.
    pub(super) mappings: u64,
    /// The root of the tree of details, by device.
    pub(super) details: u64,
    /// The size of the pool's blocks.
    pub(super) block_size: Sectors,
}

impl Superblock {
    /// Reads the superblock, or a copy, at this block.
    pub(super) fn read(device: &Device, block: u64) -> Result<Self> {
        let mut reader = ReadAhead::new(device);
        let bytes = reader.read(block)?;
        if u64_at(bytes, 32) != MAGIC {
            let path = device.path().display();
            let message = format!("block {block} of {path} is not a superblock of a thin pool");
            return Err(Error::new(Kind::Precondition, message));
        }
        device.verify(block, bytes, SALT)?;
        let (version, features) = (u32_at(bytes, 40), u32_at(bytes, 360));
        if !VERSIONS.contains(&version) || features != 0 {
            let message = format!(
                "the thin pool metadata {} has version {version} and features {features:#x}, which are not supported",
                device.path().display()
            );
            return Err(Error::new(Kind::Precondition, message));
        }
        let (data, metadata) = (u32_at(bytes, 336), u32_at(bytes, 340));
        if !BLOCK_SIZES.contains(&data) || !data.is_multiple_of(BLOCK_SIZE_STEP) {
            return Err(device.corrupt(block, format!("the pool has blocks of {data} sectors")));
        }
        if metadata != METADATA_BLOCK {
            return Err(device.corrupt(block, format!("it has blocks of {metadata} sectors")));
        }
        Ok(Self {
            checksum: u32_at(bytes, 0),
            transaction: u64_at(bytes, 48),
            snapshot: u64_at(bytes, 56),
            mappings: u64_at(bytes, 320),
            details: u64_at(bytes, 328),
            block_size: Sectors(data.into()),
        })
    }
}
