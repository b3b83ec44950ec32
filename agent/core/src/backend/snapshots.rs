//! What every back end does with several images at once: group snapshots, and rollback to one of them.

use async_trait::async_trait;

use super::ImageSpec;
use crate::{Result, host::quiesce::QuiescePlan, types::ImageId};

/// Snapshots of several images at one point in time, and the way back to them; as [`super::Backend`], each method can
/// be interrupted and repeated.
#[async_trait]
pub trait Snapshots {
    /// Refuses copies that cannot be part of one group snapshot, or have no room, before anything is created.
    ///
    /// # Errors
    /// `Precondition` or `NoSpace`, naming the image.
    async fn check_group_snapshot(&self, specs: &[ImageSpec]) -> Result<()>;

    /// Creates what the copies of a group snapshot need, and returns the steps for the freeze barrier. Until these
    /// are done the contents of the copies are undefined; a copy that is not completed is deleted like any image.
    async fn prepare_group_snapshot(&self, specs: &[ImageSpec]) -> Result<QuiescePlan>;

    /// Flushes the copies of a group snapshot to disk, after the freeze barrier.
    async fn flush_group_snapshot(&self, _: &[ImageSpec]) -> Result<()> {
        Ok(())
    }

    /// Refuses a rollback that is not possible: each pair is a volume and one of its snapshots.
    ///
    /// # Errors
    /// `InUse`, `NoSpace`, `Precondition`.
    async fn check_rollback(&self, pairs: &[(ImageId, ImageId)]) -> Result<()>;

    /// Rolls a volume back to one of its snapshots, which is kept. The volume keeps its size; its contents behind the
    /// end of the snapshot are undefined. If it is interrupted, the contents are undefined until it is repeated.
    ///
    /// # Errors
    /// `InUse` when its device is mounted or open; then the volume is unchanged.
    async fn roll_back(&self, id: ImageId, from: ImageId) -> Result<()>;
}
