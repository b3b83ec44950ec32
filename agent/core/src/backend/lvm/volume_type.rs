//! What differs between the types of logical volumes that a class can have: how they get their extents, and how they
//! are copied, grown, wiped and removed.
//!
//! A type is its settings, and what it remembers, with these operations. [`Provisioning::volume_type`] is the only place that knows them all:
//! another one is a file with its operations, a variant of [`Provisioning`], and its settings in the configuration.
//! Recovery (`recovery.rs`) works on a whole volume group and knows no class: it tells volumes by what LVM's metadata
//! says of them.

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;
use drumlin_lvm::{
    Extents,
    in_flight::InFlightGuard,
    metadata::{GroupMetadata, LogicalVolume},
};

use super::{
    Lvm, OwnVolume, Provisioning, extend::Activation, thick::class::ThickClass,
    thin::class::ThinClass,
};
use crate::{
    Result,
    backend::{
        Capacity, ChangedQuery, Fault, ImageSpec, RangeSink, Space, StorageKind,
        room::{choose, freed},
    },
    host::{
        device_mapper::{DeviceMapper, Mapped},
        quiesce::{Check, Step},
    },
    types::{ImageId, Size},
};

/// A type of logical volumes. `lvm` is the class, `now` the metadata of its group.
#[async_trait]
pub(super) trait VolumeType: Debug + Send + Sync {
    /// The type of the storage of such a class.
    fn kind(&self) -> StorageKind;

    /// The number of extents that the length of a volume is a multiple of.
    fn extents_per_unit(&self) -> Extents {
        Extents(1)
    }

    /// The pool whose capacity all volumes share, if any: what running operations add to it is reserved.
    fn pool(&self) -> Option<&str> {
        None
    }

    /// Why the class cannot have a volume that others made, if it cannot: it would not be like its own volumes.
    fn misfit(&self, volume: &LogicalVolume) -> Option<String>;

    /// Keeps a new volume in flight until [`VolumeType::fill`] has filled it, which is the next step; does nothing
    /// where new volumes are complete.
    fn hold_until_filled(&self, _id: ImageId, _in_flight: InFlightGuard) {}

    /// Refuses a class whose volumes cannot be created.
    async fn check(&self, lvm: &Lvm, now: &GroupMetadata) -> Result<()>;

    /// The remaining capacity.
    async fn capacity(&self, lvm: &Lvm, now: &GroupMetadata) -> Result<Capacity>;

    /// How much of the storage is used and promised.
    async fn space(&self, lvm: &Lvm, now: &GroupMetadata) -> Result<Space>;

    /// Refuses what exceeds the capacity: this number of bytes more, behind those that others have reserved.
    async fn check_room(
        &self,
        _lvm: &Lvm,
        _now: &GroupMetadata,
        _more: u64,
        _ahead: u64,
    ) -> Result<()> {
        // Checked when the extents are chosen.
        Ok(())
    }

    /// What is wrong for all volumes of the class when writes to them may fail, though each by itself is healthy.
    async fn danger(&self, _lvm: &Lvm, _now: &GroupMetadata) -> Option<Fault> {
        None
    }

    /// What is wrong with what all volumes of the class share, or will be soon.
    async fn faults(&self, lvm: &Lvm, now: &GroupMetadata) -> Vec<Fault> {
        self.danger(lvm, now).await.into_iter().collect()
    }

    /// Creates what volumes need before the first of them. Idempotent.
    async fn prepare(&self, _lvm: &Lvm) -> Result<()> {
        Ok(())
    }

    /// Finds what an interruption has left that the recovery of the group cannot see.
    async fn recover(&self, _lvm: &Lvm) {}

    /// Creates a volume that reads as zeros, or the incomplete volume that is filled next.
    async fn create_blank(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        spec: &ImageSpec,
        size: Size,
    ) -> Result<()>;

    /// Creates a snapshot or a copy of a source, or the incomplete volume that is filled next.
    async fn create_copy(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        spec: &ImageSpec,
        size: Size,
        source: &OwnVolume<'_>,
    ) -> Result<()>;

    /// Returns true if an incomplete image can still become what the specification asks for.
    fn can_continue(
        &self,
        _lvm: &Lvm,
        _now: &GroupMetadata,
        _found: &OwnVolume<'_>,
        _spec: &ImageSpec,
    ) -> bool {
        false
    }

    /// Fills an incomplete volume, and makes it visible. Idempotent.
    async fn fill(&self, _lvm: &Lvm, _spec: &ImageSpec) -> Result<()> {
        Ok(())
    }

    /// Removes the volumes of an incomplete image, in this order.
    async fn discard(&self, lvm: &Lvm, volumes: Vec<&LogicalVolume>) -> Result<()>;

    /// Removes what there is of an image that is incomplete, or whose deletion was interrupted.
    async fn remove_incomplete(&self, lvm: &Lvm, found: &OwnVolume<'_>) -> Result<()> {
        lvm.discard(found.tags.id).await
    }

    /// Finds the changed blocks of a snapshot.
    async fn changed(&self, lvm: &Lvm, query: ChangedQuery, sink: Box<dyn RangeSink>)
    -> Result<()>;

    /// Refuses a volume that [`VolumeType::remove`] would refuse now.
    ///
    /// # Errors
    /// `InUse` while it is being copied.
    fn check_removable(
        &self,
        _lvm: &Lvm,
        _now: &GroupMetadata,
        _found: &OwnVolume<'_>,
    ) -> Result<()> {
        Ok(())
    }

    /// Refuses a volume whose removal would take snapshots of it along.
    ///
    /// # Errors
    /// `Precondition`, and `Busy` while one of them is being removed.
    async fn check_unbound(
        &self,
        _lvm: &Lvm,
        _now: &GroupMetadata,
        _found: &OwnVolume<'_>,
    ) -> Result<()> {
        Ok(())
    }

    /// Removes a complete volume or snapshot.
    async fn remove(&self, lvm: &Lvm, found: &OwnVolume<'_>) -> Result<()>;

    /// Continues an interrupted deletion, if the image has one.
    async fn end_removal(&self, _lvm: &Lvm, _id: ImageId) -> Result<()> {
        Ok(())
    }

    /// Extends a volume in the metadata, and its device if that costs nobody else anything.
    async fn extend(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        found: &OwnVolume<'_>,
        to: Size,
        was: Activation,
    ) -> Result<()>;

    /// Extends a device to the length in the metadata, if it is shorter.
    async fn lengthen(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        device: &Mapped,
    ) -> Result<()>;

    /// The bytes that a volume takes; none if that cannot be told now.
    async fn usage(
        &self,
        _lvm: &Lvm,
        now: &GroupMetadata,
        found: &OwnVolume<'_>,
    ) -> Result<Option<u64>> {
        Ok(Some(now.bytes(found.volume)))
    }

    /// The volumes, of these, whose deletion certainly makes room for this many bytes.
    async fn room_by_deleting(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        needed: u64,
        oldest_first: &[OwnVolume<'_>],
    ) -> Result<Vec<ImageId>> {
        let largest = self.capacity(lvm, now).await?.largest.bytes();
        let frees = |ours: &OwnVolume<'_>| match now.snapshots_of(ours.volume).next() {
            None => now.bytes(ours.volume),
            // It is not deleted before its snapshots are.
            Some(_) => 0,
        };
        let frees: Vec<u64> = oldest_first.iter().map(frees).collect();
        Ok(choose(&ids(oldest_first), |deleted| {
            largest.saturating_add(freed(&frees, deleted)) >= needed
        }))
    }

    /// Syncs the cached writes of a volume, before LVM suspends it.
    async fn flush(&self, lvm: &Lvm, now: &GroupMetadata, id: ImageId) -> Result<()> {
        lvm.sync(now, id).await
    }

    /// The bytes of the volume group that a snapshot of this volume takes as a member of a group snapshot; none for a
    /// volume of another type.
    fn member_bytes(&self, now: &GroupMetadata, source: &LogicalVolume) -> Option<u64>;

    /// Refuses a group snapshot whose members take this many bytes of the volume group in all.
    async fn check_group_snapshot(&self, lvm: &Lvm, now: &GroupMetadata, bytes: u64) -> Result<()>;

    /// Creates a member of a group snapshot; it has the contents of the freeze barrier once that was.
    async fn create_member(&self, lvm: &Lvm, now: &GroupMetadata, spec: &ImageSpec) -> Result<()>;

    /// Returns true if a member that was created is empty until the freeze barrier, even if nothing can write to its
    /// source.
    fn is_empty_member(&self, _member: &LogicalVolume) -> bool {
        false
    }

    /// The steps for one member, a snapshot of `origin`: those before the freeze barrier, and those within it.
    fn barrier_steps(
        &self,
        mapper: &DeviceMapper,
        now: &GroupMetadata,
        member: &LogicalVolume,
        origin: &LogicalVolume,
    ) -> Result<(Vec<Step>, Vec<Step>)>;

    /// What is checked with the volume group locked, before the freeze barrier.
    fn check_before_barrier(&self, _lvm: &Lvm, _now: &GroupMetadata) -> Result<Option<Check>> {
        Ok(None)
    }

    /// Does for the members what can wait until writers run again.
    async fn follow_up_group_snapshot(&self, _lvm: &Lvm, _specs: &[ImageSpec]) -> Result<()> {
        Ok(())
    }

    /// Returns true if a volume can be rolled back to this snapshot.
    fn is_snapshot_of(&self, snapshot: &LogicalVolume, volume: &LogicalVolume) -> bool;

    /// Refuses a rollback that is not possible, or for which other snapshots have no room to keep the overwritten
    /// blocks.
    async fn check_rollback(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        snapshot: &LogicalVolume,
    ) -> Result<()>;

    /// Rolls a volume back to a snapshot of it. Repeatable after an interruption.
    async fn roll_back(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        volume: &OwnVolume<'_>,
        snapshot: &OwnVolume<'_>,
    ) -> Result<()>;
}

impl Provisioning {
    /// The operations of the type, for one class.
    pub(super) fn volume_type(&self) -> Arc<dyn VolumeType> {
        match self {
            Self::Thin(pool) => Arc::new(ThinClass::new(pool.clone())),
            Self::Thick(thick) => Arc::new(ThickClass::new(thick.clone())),
        }
    }
}

/// The images of volumes.
pub(super) fn ids(volumes: &[OwnVolume<'_>]) -> Vec<ImageId> {
    volumes.iter().map(|ours| ours.tags.id).collect()
}
