//! What every back end does: the trait, and what it says of itself.

use std::{
    fmt,
    ops::Deref,
    path::{Path, PathBuf},
};

use async_trait::async_trait;

use super::{
    Change, ChangedBlocks, Checks, ForeignVolumes, Image, ImageSpec, Jobs, LabelChange, Snapshots,
    StorageKind, Utilization,
};
use crate::{
    Result,
    host::{Access, FileSystem, loop_device::Hold},
    types::{ImageId, Size, SizeRules},
};

/// The features of a back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// The sizes that it supports.
    pub sizes: SizeRules,
    /// The default file system of new volumes.
    pub file_system: FileSystem,
    /// The device of an image stays when it is detached.
    pub keeps_devices: bool,
    /// Blocks freed by a file system (`fstrim`) become available to other images; otherwise they stay allocated to
    /// the image.
    pub takes_back: bool,
}

/// Back ends whose images can be quiesced together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Directories of image files.
    Directory,
    /// Volume groups and thin pools.
    Lvm,
}

/// The capacity of a back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Free space, in bytes.
    pub available: Size,
    /// The largest volume that can be created, in bytes.
    pub largest: Size,
}

/// The path of the block device of an image. While this exists the path leads to that image and to no other one.
#[derive(Debug)]
pub struct AttachedDevice {
    path: PathBuf,
    _hold: Option<Hold>,
}

impl AttachedDevice {
    /// A loop device, whose name is given to another image once it is detached.
    pub(crate) fn held(path: PathBuf, hold: Hold) -> Self {
        Self {
            path,
            _hold: Some(hold),
        }
    }
}

/// A device whose name is that of one image for good.
impl From<PathBuf> for AttachedDevice {
    fn from(path: PathBuf) -> Self {
        Self { path, _hold: None }
    }
}

impl Deref for AttachedDevice {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

/// The storage of one device class: a directory of image files, a volume group or a thin pool.
///
/// Every method is idempotent and can be interrupted; a repeated call finds what the first one created. The caller
/// holds the lock of the image's key for every method that changes something.
///
/// Groups are images of size zero without data: they can be created blank, listed, read, relabelled and deleted, and
/// nothing else.
#[async_trait]
pub trait Backend:
    ChangedBlocks + Checks + ForeignVolumes + Snapshots + Jobs + fmt::Debug + Send + Sync + 'static
{
    /// The family: back ends of one family can take part in the same group snapshot.
    fn family(&self) -> Family;

    /// The type of its storage.
    fn kind(&self) -> StorageKind;

    /// Its features.
    ///
    /// # Errors
    /// `Precondition` when they depend on its storage, and that is missing.
    async fn features(&self) -> Result<Features>;

    /// Recovery: completes or undoes what an earlier process left incomplete, and thaws what that process froze.
    async fn recover(&self) -> Result<()>;

    /// Its capacity.
    async fn capacity(&self) -> Result<Capacity>;

    /// What it uses of its storage: its capacity, and what that is the rest of. Starts no program unless the disks
    /// changed.
    async fn utilization(&self) -> Result<Utilization>;

    /// All its images of one kind, by key, in one pass.
    async fn list(&self, kind: crate::types::ImageKind) -> Result<Vec<Image>>;

    /// One image; none if it does not exist.
    async fn get(&self, id: ImageId) -> Result<Option<Image>>;

    /// Creates an image, blank or as a copy of another; an existing one is returned unchanged.
    ///
    /// When it returns, the point in time of a copy is fixed. Its data may still be missing; then the image stays
    /// invisible until [`Backend::finish`] has completed it.
    ///
    /// # Errors
    /// `NoSpace` when there is no room; then nothing is left behind.
    async fn create(&self, spec: &ImageSpec) -> Result<Change<Image>>;

    /// Completes what [`Backend::create`] has begun, regardless of the time it takes. The source may be used
    /// meanwhile.
    ///
    /// # Errors
    /// `HalfDone` when the next call continues; after any other error nothing is left behind.
    async fn finish(&self, _: &ImageSpec) -> Result<()> {
        Ok(())
    }

    /// Grows an image, and its device, to at least `to` bytes. Never shrinks it.
    async fn grow(&self, id: ImageId, to: Size) -> Result<Change<Image>>;

    /// Sets and removes labels, in one durable step.
    async fn relabel(&self, id: ImageId, change: &LabelChange) -> Result<Change<Image>>;

    /// Gives an image another identity and changes its labels; its data and its devices stay as they are. An image that
    /// has the identity `to` is never replaced; one that was renamed before is `Already`.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when both exist; `InUse` when its device is mounted or open, or it is being copied.
    async fn rename(
        &self,
        from: ImageId,
        to: ImageId,
        change: &LabelChange,
    ) -> Result<Change<Image>>;

    /// Deletes an image and its device; one that does not exist is `Already`.
    ///
    /// # Errors
    /// `InUse` when its device is mounted or open.
    async fn delete(&self, id: ImageId) -> Result<Change<()>>;

    /// Images whose deletion was begun and is not in flight; they are not visible any more.
    async fn deleting(&self) -> Result<Vec<ImageId>> {
        Ok(Vec::new())
    }

    /// Completes the deletion of an image that is being deleted; any other image is left unchanged.
    async fn end_deletion(&self, _: ImageId) -> Result<()> {
        Ok(())
    }

    /// Attaches an image to a block device, or finds its existing one.
    ///
    /// # Errors
    /// `Precondition` when the image is damaged; then nothing is attached.
    async fn attach(&self, id: ImageId, access: Access) -> Result<AttachedDevice>;

    /// The current block devices of an image.
    async fn devices(&self, id: ImageId) -> Result<Vec<PathBuf>>;

    /// Detaches the block devices of an image.
    ///
    /// # Errors
    /// `InUse` when one is mounted or open.
    async fn detach(&self, id: ImageId) -> Result<Change<()>>;

    /// The encrypted images that open with a former key of their class.
    ///
    /// # Errors
    /// `Precondition` when the current key cannot be read.
    async fn outdated(&self) -> Result<Vec<ImageId>> {
        Ok(Vec::new())
    }

    /// The encrypted images that none of the keys of their class opens, by their records; empty where only a program
    /// knows the keys.
    ///
    /// # Errors
    /// `Precondition` when a key cannot be read.
    async fn locked(&self) -> Result<Vec<ImageId>> {
        Ok(Vec::new())
    }

    /// Makes the current key of its class the one that opens an encrypted image, which may be in use. Any other image
    /// is left unchanged.
    ///
    /// # Errors
    /// `Precondition` when a key is missing; the image then opens with the key that it had.
    async fn rekey(&self, _: ImageId) -> Result<Change<()>> {
        Ok(Change::Already(()))
    }
}
