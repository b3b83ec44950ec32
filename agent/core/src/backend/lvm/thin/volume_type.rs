//! The operations of thin volumes.

use async_trait::async_trait;
use drumlin_lvm::{
    command::Command,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
};

use crate::{
    Error, Kind, Result,
    backend::lvm::{
        Lvm, OwnVolume, create::written_header, extend::Activation, thin::class::ThinClass,
        volume_type::VolumeType,
    },
    backend::{Capacity, ChangedQuery, Fault, ImageSpec, RangeSink, Space, StorageKind},
    blocking,
    host::{
        Sectors,
        device_mapper::{DeviceMapper, Line, Mapped, SuspendMode},
        quiesce::{Check, Step},
    },
    types::{ImageId, Size},
};

#[async_trait]
impl VolumeType for ThinClass {
    fn kind(&self) -> StorageKind {
        StorageKind::Thin
    }

    fn pool(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn misfit(&self, volume: &LogicalVolume) -> Option<String> {
        match &volume.kind {
            VolumeKind::Thin { pool, .. } if *pool == self.name => None,
            VolumeKind::Thin { pool, .. } => Some(format!(
                "it is in thin pool {pool}, not in {} as the volumes of its class; configure a class for that pool",
                self.name
            )),
            _ => Some(format!(
                "it is not in thin pool {}; configure a thick class for its volume group",
                self.name
            )),
        }
    }

    async fn check(&self, lvm: &Lvm, now: &GroupMetadata) -> Result<()> {
        lvm.check_pool(now, self).await
    }

    async fn capacity(&self, lvm: &Lvm, now: &GroupMetadata) -> Result<Capacity> {
        lvm.thin_capacity(now, self).await
    }

    async fn space(&self, lvm: &Lvm, now: &GroupMetadata) -> Result<Space> {
        lvm.pool_space(now, self).await
    }

    async fn check_room(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        more: u64,
        ahead: u64,
    ) -> Result<()> {
        lvm.check_pool_room(now, self, more, ahead).await
    }

    async fn danger(&self, lvm: &Lvm, now: &GroupMetadata) -> Option<Fault> {
        lvm.pool_danger(now, self).await
    }

    async fn faults(&self, lvm: &Lvm, now: &GroupMetadata) -> Vec<Fault> {
        let mut faults: Vec<Fault> = self.danger(lvm, now).await.into_iter().collect();
        faults.extend(lvm.pool_low(now, self).await);
        faults
    }

    async fn prepare(&self, lvm: &Lvm) -> Result<()> {
        lvm.make_pool(self).await
    }

    async fn recover(&self, lvm: &Lvm) {
        lvm.find_orphan_thin_devices(self).await;
    }

    async fn create_blank(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        spec: &ImageSpec,
        size: Size,
    ) -> Result<()> {
        lvm.make_thin(now, self, spec, size).await
    }

    async fn create_copy(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        spec: &ImageSpec,
        size: Size,
        source: &OwnVolume<'_>,
    ) -> Result<()> {
        let commands = lvm.copy_thin(now, self, spec, size, source).await?;
        lvm.group.change(commands).await
    }

    async fn discard(&self, lvm: &Lvm, volumes: Vec<&LogicalVolume>) -> Result<()> {
        if volumes.is_empty() {
            return Ok(());
        }
        let removals = volumes.into_iter().map(|volume| lvm.removal(volume));
        let removals = removals.collect();
        lvm.group.change(removals).await
    }

    async fn changed(
        &self,
        lvm: &Lvm,
        query: ChangedQuery,
        sink: Box<dyn RangeSink>,
    ) -> Result<()> {
        lvm.changed_thin(self, query, sink).await
    }

    async fn remove(&self, lvm: &Lvm, found: &OwnVolume<'_>) -> Result<()> {
        if written_header(found).is_some() {
            let now = lvm.group.now().await?;
            match self.danger(lvm, &now).await {
                None => lvm.forget_keys(found).await?,
                // To overwrite what is shared takes new blocks, and to delete something is what a full pool needs.
                Some(fault) => {
                    tracing::warn!(image = %found.tags.id, reason = fault.message, "header of an encrypted volume not overwritten before its removal");
                }
            }
        }
        lvm.group.change(vec![lvm.removal(found.volume)]).await
    }

    async fn extend(
        &self,
        lvm: &Lvm,
        _now: &GroupMetadata,
        found: &OwnVolume<'_>,
        to: Size,
        was: Activation,
    ) -> Result<()> {
        let command = match was {
            Activation::Active => Command::on_disk("lvextend"),
            Activation::Inactive => Command::new("lvextend"),
        };
        let command = lvm.extension(command, found.volume, to);
        lvm.group.change(vec![command]).await
    }

    /// For an active thin volume LVM would suspend the whole pool, so the agent reloads that table itself: only this
    /// device is suspended, briefly.
    async fn lengthen(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        device: &Mapped,
    ) -> Result<()> {
        let sectors = Sectors::within(now.bytes(volume));
        let _hand = lvm.group.in_flight.take(device.uuid.clone());
        let (group, uuid, is_suspended) =
            (lvm.group.clone(), device.uuid.clone(), device.is_suspended);
        blocking(move || {
            let mapper = group.mapper()?;
            let table = mapper.table(&uuid)?;
            let [line] = table.as_slice() else {
                return Err(Error::new(
                    Kind::Precondition,
                    format!(
                        "device {uuid} has a device-mapper table that this agent does not know"
                    ),
                ));
            };
            if line.length >= sectors && !is_suspended {
                return Ok(());
            }
            if line.length < sectors {
                let longer = Line {
                    length: sectors,
                    ..line.clone()
                };
                mapper.load(&uuid, &[longer])?;
                mapper.suspend(&uuid, SuspendMode::Quick)?;
            }
            mapper.resume(&uuid)
        })
        .await
    }

    async fn usage(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        found: &OwnVolume<'_>,
    ) -> Result<Option<u64>> {
        lvm.taken(now, found).await
    }

    async fn room_by_deleting(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        needed: u64,
        oldest_first: &[OwnVolume<'_>],
    ) -> Result<Vec<ImageId>> {
        lvm.thin_room_by_deleting(now, self, needed, oldest_first)
            .await
    }

    /// In addition [`Kind::NoSpace`] when the pool is full: a sync would wait for the writers of a full pool, or fail
    /// with them.
    async fn flush(&self, lvm: &Lvm, now: &GroupMetadata, id: ImageId) -> Result<()> {
        lvm.check_pool_room(now, self, 0, 0).await?;
        match lvm.sync(now, id).await {
            // The sync itself may have filled it.
            Err(error) => Err(lvm
                .check_pool_room(now, self, 0, 0)
                .await
                .err()
                .unwrap_or(error)),
            Ok(()) => Ok(()),
        }
    }

    fn member_bytes(&self, _now: &GroupMetadata, source: &LogicalVolume) -> Option<u64> {
        matches!(source.kind, VolumeKind::Thin { .. }).then_some(0)
    }

    async fn check_group_snapshot(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        _bytes: u64,
    ) -> Result<()> {
        lvm.check_pool_room(now, self, 0, 0).await
    }

    async fn create_member(&self, lvm: &Lvm, now: &GroupMetadata, spec: &ImageSpec) -> Result<()> {
        let source = lvm.unmerged_volume(now, spec.source()?)?;
        if lvm.device(now, source.volume)?.is_some() {
            return lvm
                .create_empty_member(now, self, spec, source.volume)
                .await;
        }
        let commands = lvm.copy_thin(now, self, spec, spec.size, &source).await?;
        lvm.group.change(commands).await
    }

    fn is_empty_member(&self, member: &LogicalVolume) -> bool {
        matches!(member.kind, VolumeKind::Thin { origin: None, .. })
    }

    fn barrier_steps(
        &self,
        _mapper: &DeviceMapper,
        now: &GroupMetadata,
        member: &LogicalVolume,
        origin: &LogicalVolume,
    ) -> Result<(Vec<Step>, Vec<Step>)> {
        let (
            VolumeKind::Thin {
                pool, device: new, ..
            },
            VolumeKind::Thin { device: old, .. },
        ) = (&member.kind, &origin.kind)
        else {
            return Err(Error::new(
                Kind::Bug,
                "a volume of a thin class is not thin",
            ));
        };
        let (volume, _) = now.pool(pool).ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!("thin pool {pool} does not exist any more"),
            )
        })?;
        let message = |text| Step::Message {
            pool: now.pool_uuid(volume),
            text,
        };
        Ok((
            vec![message(format!("delete {new}"))],
            vec![message(format!("create_snap {new} {old}"))],
        ))
    }

    fn check_before_barrier(&self, lvm: &Lvm, now: &GroupMetadata) -> Result<Option<Check>> {
        lvm.room_check(now, self).map(Some)
    }

    fn is_snapshot_of(&self, snapshot: &LogicalVolume, volume: &LogicalVolume) -> bool {
        match (&volume.kind, &snapshot.kind) {
            (VolumeKind::Thin { pool, .. }, VolumeKind::Thin { pool: other, .. }) => pool == other,
            _ => false,
        }
    }

    async fn check_rollback(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        _volume: &LogicalVolume,
        snapshot: &LogicalVolume,
    ) -> Result<()> {
        // With a read-only pool, the volume could be deleted but not created again.
        lvm.check_is_in_pool(now, snapshot).await?;
        lvm.pool_state(now, self).await.map(drop)
    }

    async fn roll_back(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        volume: &OwnVolume<'_>,
        snapshot: &OwnVolume<'_>,
    ) -> Result<()> {
        lvm.roll_back_thin(now, volume.volume, snapshot.volume)
            .await
    }
}
