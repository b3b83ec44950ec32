//! What stores images: one value per device class.
//!
//! The rules of volumes and snapshots are in [`crate::ops`], once; a back end keeps bytes and labels.

mod adoption;
pub mod directory;
mod gate;
mod image;
pub mod lvm;
#[cfg(test)]
mod suite;

use std::{fmt, path::PathBuf};

use async_trait::async_trait;

pub use adoption::Adoption;
pub use image::{Change, Health, Image, ImageSpec, LabelChange, Labels, Origin};

use crate::{
    Result,
    host::{Access, FileSystem, quiesce::QuiescePlan},
    types::{ImageId, Size, SizeRules},
};

/// What a back end can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// The sizes that it makes.
    pub sizes: SizeRules,
    /// The file system of a volume whose creator named none.
    pub file_system: FileSystem,
    /// An image's device stays when it is detached.
    pub keeps_devices: bool,
    /// Blocks that a file system gives back are free for others; elsewhere they are its own, used or not.
    pub takes_back: bool,
}

/// Back ends whose images can be held at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Directories of image files.
    Directory,
    /// Volume groups and thin pools.
    Lvm,
}

/// What room a back end has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Free now, in bytes.
    pub available: Size,
    /// The largest volume that can be made now, in bytes.
    pub largest: Size,
}

/// One value per device class: a directory of image files, a volume group or a thin pool.
///
/// Every method may be repeated and interrupted; a repeat finds what the first call made.
/// The caller holds the lock of the image's key for every method that changes something.
///
/// Groups are images of size zero without bytes: they are made blank, listed, found, relabelled and deleted, nothing else.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Which others can hold images of one moment with it.
    fn family(&self) -> Family;

    /// What it can do.
    ///
    /// # Errors
    /// `Precondition` when its storage must be looked at for that, and is missing.
    async fn features(&self) -> Result<Features>;

    /// Whether it can be read and written now; the error says what is missing. Costs a few system calls.
    async fn check(&self) -> Result<()>;

    /// Finishes or undoes what an earlier process left half-made, and thaws what that process froze.
    async fn recover(&self) -> Result<()>;

    /// The room that it has.
    async fn capacity(&self) -> Result<Capacity>;

    /// All its images of one kind, by key, in one pass.
    async fn list(&self, kind: crate::types::ImageKind) -> Result<Vec<Image>>;

    /// One image, or none.
    async fn get(&self, id: ImageId) -> Result<Option<Image>>;

    /// Makes an image, blank or a copy of another; one that exists already is returned as it is.
    ///
    /// When it returns the moment of a copy is held. Its bytes may still be missing, and then nobody sees it until
    /// [`Backend::finish`] has brought them.
    ///
    /// # Errors
    /// `NoSpace` when there is no room, and then nothing is left behind.
    async fn create(&self, spec: &ImageSpec) -> Result<Change<Image>>;

    /// Does what [`Backend::create`] has left, however long that takes. The origin may be used meanwhile.
    ///
    /// # Errors
    /// `HalfDone` when it goes on with the next call; after any other nothing is left behind.
    async fn finish(&self, _: &ImageSpec) -> Result<()> {
        Ok(())
    }

    /// How far something is that takes long, for people; none when nothing of the image does.
    fn progress(&self, _: ImageId) -> Option<String> {
        None
    }

    /// The agent ends: what takes long stops where it can go on.
    fn stop(&self) {}

    /// Makes an image at least `to` bytes large, and its device with it. Never makes it smaller.
    async fn grow(&self, id: ImageId, to: Size) -> Result<Change<Image>>;

    /// Sets and removes labels, in one durable step.
    async fn relabel(&self, id: ImageId, change: &LabelChange) -> Result<Change<Image>>;

    /// Removes an image and its device; one that does not exist is `Already`.
    ///
    /// # Errors
    /// `InUse` when its device is mounted or open.
    async fn delete(&self, id: ImageId) -> Result<Change<()>>;

    /// Refuses copies that cannot be of one moment, or have no room, before anything is made.
    ///
    /// # Errors
    /// `Precondition` or `NoSpace`, naming the image.
    async fn check_group_snapshot(&self, specs: &[ImageSpec]) -> Result<()>;

    /// Makes what copies of one moment need, and says what is left to be done at that. Until then they show nothing that
    /// means anything; one that is not to be is deleted like any image.
    async fn prepare_group_snapshot(&self, specs: &[ImageSpec]) -> Result<QuiescePlan>;

    /// Brings copies of one moment to the disk, after that.
    async fn flush_group_snapshot(&self, _: &[ImageSpec]) -> Result<()> {
        Ok(())
    }

    /// Refuses to give volumes back the bytes of snapshots of them where that cannot be done: each is a volume and one of
    /// its snapshots.
    ///
    /// # Errors
    /// `InUse`, `NoSpace`, `Precondition`.
    async fn check_rollback(&self, pairs: &[(ImageId, ImageId)]) -> Result<()>;

    /// Gives a volume back the bytes of one of its snapshots, which stays. It keeps its size; what it has behind the
    /// snapshot's end means nothing. Interrupted, its bytes are neither, until it is repeated.
    ///
    /// # Errors
    /// `InUse` when its device is mounted or open, and then it is as it was.
    async fn roll_back(&self, id: ImageId, from: ImageId) -> Result<()>;

    /// Images that nobody sees any more because their deletion was begun, and that nobody deletes now.
    async fn deleting(&self) -> Result<Vec<ImageId>> {
        Ok(Vec::new())
    }

    /// Ends the deletion of an image that is leaving; one that is not stays as it is.
    async fn end_deletion(&self, _: ImageId) -> Result<()> {
        Ok(())
    }

    /// What an image takes of its storage, in bytes, where that is known. What it shares with others counts.
    ///
    /// # Errors
    /// `NotFound`.
    async fn usage(&self, id: ImageId) -> Result<Option<u64>>;

    /// Gives an image a block device, or finds the one that it has.
    ///
    /// # Errors
    /// `Precondition` when the image is damaged, and then nothing is attached.
    async fn attach(&self, id: ImageId, access: Access) -> Result<PathBuf>;

    /// The block devices of an image, as they are now.
    async fn devices(&self, id: ImageId) -> Result<Vec<PathBuf>>;

    /// Takes the block devices of an image away.
    ///
    /// # Errors
    /// `InUse` when one is mounted or open.
    async fn detach(&self, id: ImageId) -> Result<Change<()>>;
}
