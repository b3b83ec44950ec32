//! The metadata of a pool as of one instant.

use std::path::Path;

use super::{
    block::{Device, u32_at, u64_at},
    cursor::{Cursor, Tree},
    runs::ThinRuns,
    superblock::{LOCATION, Superblock},
};
use crate::{Error, Kind, Result, ThinBlocks, host::Sectors};

/// The size of `disk_device_details`.
const DETAILS: usize = 24;
/// The size of a mapping, and of the root of a mapping tree.
const NUMBER: usize = 8;

/// The instant whose metadata is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinView {
    /// Of the metadata snapshot of the pool (message `reserve_metadata_snap`), which stays as it is while the pool is in
    /// use.
    MetadataSnapshot,
    /// Of what was committed last, for a pool that is not active. An active one overwrites what is read.
    LastCommit,
}

/// A thin device, as its pool describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinDevice {
    /// The number of blocks that are mapped.
    pub mapped_blocks: ThinBlocks,
    /// The transaction id of the pool when the device was created.
    pub transaction_id: u64,
    /// The time of the pool, which counts its snapshots, when the device was created.
    pub creation_time: u32,
    /// The time of the pool when a snapshot of the device was last created, or it was created as one.
    pub snapshotted_time: u32,
}

/// The metadata of a thin pool, opened for reading.
///
/// All of it blocks, and uses direct I/O. A walk has one path of each tree in memory, and at most 256 KiB that it reads
/// ahead in each, however many blocks are mapped. While it is open LVM cannot deactivate the metadata device.
///
/// ```no_run
/// use std::path::Path;
///
/// use drumlin_lvm::{ThinBlocks, ThinMetadata, ThinView};
///
/// # fn example() -> drumlin_lvm::Result<()> {
/// // While the pool has a metadata snapshot: dmsetup message data-pool-tpool 0 reserve_metadata_snap
/// let path = Path::new("/dev/mapper/data-pool_tmeta");
/// let metadata = ThinMetadata::open(path, ThinView::MetadataSnapshot)?;
/// let size = metadata.block_size();
/// for run in metadata.differing(1, 2, ThinBlocks::ZERO)? {
///     let run = run?;
///     println!("bytes {} to {} differ", run.start.bytes(size), run.end.bytes(size));
/// }
/// // Nobody has released the metadata snapshot meanwhile, so that all of it was true.
/// metadata.verify_unchanged()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ThinMetadata {
    device: Device,
    view: ThinView,
    superblock: Superblock,
}

impl ThinMetadata {
    /// Opens the metadata device of a pool (`_tmeta`), or a file with metadata.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when it is no valid metadata of a thin pool, or has no metadata snapshot and that was asked
    /// for; [`Kind::Io`].
    pub fn open(path: &Path, view: ThinView) -> Result<Self> {
        let device = Device::open(path)?;
        let superblock = read_superblock(&device, view)?;
        Ok(Self {
            device,
            view,
            superblock,
        })
    }

    /// The size of the pool's blocks.
    pub fn block_size(&self) -> Sectors {
        self.superblock.block_size
    }

    /// The transaction id of the pool.
    pub fn transaction_id(&self) -> u64 {
        self.superblock.transaction
    }

    /// What the pool says of the thin device with this number.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when the pool has no such device, [`Kind::Precondition`] when metadata is corrupt,
    /// [`Kind::Io`].
    pub fn device(&self, number: u64) -> Result<ThinDevice> {
        let details = self.find(self.superblock.details, DETAILS, number)?;
        Ok(ThinDevice {
            mapped_blocks: ThinBlocks(u64_at(&details, 0)),
            transaction_id: u64_at(&details, 8),
            creation_time: u32_at(&details, 16),
            snapshotted_time: u32_at(&details, 20),
        })
    }

    /// The blocks of a thin device that are mapped, from `from` onwards. Begins there without reading what is before.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when the pool has no such device, [`Kind::Precondition`] when metadata is corrupt,
    /// [`Kind::Io`]; the runs have the latter two.
    pub fn mapped(&self, device: u64, from: ThinBlocks) -> Result<ThinRuns<'_>> {
        Ok(ThinRuns::mapped(self.walk(device, from)?))
    }

    /// The blocks that differ between two thin devices, from `from` onwards: those that are mapped to different data
    /// blocks, or mapped in one of them alone. A device does not differ from its snapshot where neither was written since.
    ///
    /// A block that was written with what it had before differs nevertheless, if it was shared before.
    ///
    /// # Errors
    /// Those of [`ThinMetadata::mapped`].
    pub fn differing(&self, base: u64, target: u64, from: ThinBlocks) -> Result<ThinRuns<'_>> {
        let (mut base, mut target) = (self.walk(base, from)?, self.walk(target, from)?);
        // Without it shared nodes would not be recognised.
        if base.head() != target.head() {
            base.measure()?;
            target.measure()?;
        }
        Ok(ThinRuns::differing(base, target))
    }

    /// Verifies that what was read is still what was asked for; to be called after the last run that is used. Where it
    /// fails, blocks that were read may have been overwritten before, and nothing of the result can be trusted.
    ///
    /// # Errors
    /// [`Kind::Busy`] when the metadata snapshot was released, or the pool has committed since with
    /// [`ThinView::LastCommit`]; begin again. [`Kind::Precondition`], [`Kind::Io`].
    pub fn verify_unchanged(&self) -> Result<()> {
        // What was released may have been overwritten, and is no superblock any more.
        let now = read_superblock(&self.device, self.view);
        match now {
            Ok(now) if now == self.superblock => Ok(()),
            Err(error) if error.kind() == Kind::Io => Err(error),
            _ => Err(Error::new(
                Kind::Busy,
                format!(
                    "the thin pool metadata {} was changed while it was read",
                    self.device.path().display()
                ),
            )),
        }
    }

    fn walk(&self, device: u64, from: ThinBlocks) -> Result<Cursor<'_>> {
        let root = self.find(self.superblock.mappings, NUMBER, device)?;
        let tree = Tree {
            root: u64_at(&root, 0),
            value_size: NUMBER,
            // The end of the last block is an offset in bytes.
            last: u64::MAX / self.block_size().bytes().max(1) - 1,
        };
        Ok(Cursor::new(&self.device, tree, from.0))
    }

    /// The value of a thin device in a tree.
    fn find(&self, root: u64, value_size: usize, number: u64) -> Result<Vec<u8>> {
        let tree = Tree {
            root,
            value_size,
            last: u64::MAX,
        };
        Cursor::find(&self.device, tree, number)?.ok_or_else(|| {
            let path = self.device.path().display();
            Error::not_found(format!("the thin pool of {path} has no device {number}"))
        })
    }
}

fn read_superblock(device: &Device, view: ThinView) -> Result<Superblock> {
    let last = Superblock::read(device, LOCATION)?;
    match (view, last.snapshot) {
        (ThinView::LastCommit, _) => Ok(last),
        (ThinView::MetadataSnapshot, 0) => Err(Error::new(
            Kind::Precondition,
            format!(
                "the thin pool of {} has no metadata snapshot",
                device.path().display()
            ),
        )),
        (ThinView::MetadataSnapshot, block) => Superblock::read(device, block),
    }
}
