//! The operations of thick volumes.

use async_trait::async_trait;
use drumlin_lvm::{
    Extents,
    dmeventd::Dmeventd,
    in_flight::InFlightGuard,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
};

use super::{
    group_snapshot::{check_stores, empty_again},
    volumes::{capacity, check_disks},
};
use crate::{
    Result,
    backend::lvm::{
        Layout, Lvm, OwnVolume, extend::Activation, name_of, thick::class::ThickClass,
        volume_type::VolumeType,
    },
    backend::{Capacity, ChangedQuery, ImageSpec, RangeSink, Space, StorageKind},
    blocking,
    host::{
        cow_store,
        device_mapper::{DeviceMapper, Mapped},
        quiesce::Step,
    },
    types::{ImageId, ImageKind, Size},
};

#[async_trait]
impl VolumeType for ThickClass {
    fn kind(&self) -> StorageKind {
        StorageKind::Thick
    }

    fn extents_per_unit(&self) -> Extents {
        Extents(self.layout.unit().into())
    }

    fn misfit(&self, volume: &LogicalVolume) -> Option<String> {
        if let VolumeKind::Thin { pool, .. } = &volume.kind {
            return Some(format!(
                "it is in thin pool {pool}; configure a class for that pool"
            ));
        }
        let wanted = match self.layout {
            Layout::Linear => ("striped", 1),
            Layout::Striped(stripes) => ("striped", stripes),
            Layout::Mirrored(mirrors) => ("raid1", mirrors + 1),
        };
        let other = volume
            .segments
            .iter()
            .find(|segment| (segment.kind.as_str(), segment.legs) != (wanted.0, wanted.1.into()))?;
        Some(format!(
            "it is laid out as {}, not as the volumes of its class, {}; configure a class with its layout",
            described(&other.kind, other.legs),
            described(wanted.0, wanted.1.into())
        ))
    }

    fn hold_until_filled(&self, id: ImageId, in_flight: InFlightGuard) {
        self.unfilled().insert(id, in_flight);
    }

    async fn check(&self, _lvm: &Lvm, now: &GroupMetadata) -> Result<()> {
        check_disks(now, self)
    }

    async fn capacity(&self, _lvm: &Lvm, now: &GroupMetadata) -> Result<Capacity> {
        capacity(now, self)
    }

    async fn space(&self, lvm: &Lvm, now: &GroupMetadata) -> Result<Space> {
        Ok(lvm.group_space(now))
    }

    async fn create_blank(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        spec: &ImageSpec,
        size: Size,
    ) -> Result<()> {
        let commands = lvm.new_thick(now, self, spec, size)?;
        lvm.group.change(commands).await?;
        lvm.check_legs(spec.id).await
    }

    async fn create_copy(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        spec: &ImageSpec,
        size: Size,
        source: &OwnVolume<'_>,
    ) -> Result<()> {
        let commands = match spec.id.kind {
            ImageKind::Snapshot => lvm.new_snapshot(now, self, spec, source)?,
            ImageKind::Volume => lvm.begin_copy(now, self, spec, size, source)?,
            ImageKind::Group | ImageKind::GroupSnapshot | ImageKind::Trash => Vec::new(),
        };
        lvm.group.change(commands).await?;
        lvm.check_legs(spec.id).await
    }

    fn can_continue(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        found: &OwnVolume<'_>,
        spec: &ImageSpec,
    ) -> bool {
        lvm.can_go_on(now, found, spec)
    }

    async fn fill(&self, lvm: &Lvm, spec: &ImageSpec) -> Result<()> {
        let _in_flight = self.unfilled().remove(&spec.id);
        lvm.fill(self, spec).await
    }

    async fn discard(&self, lvm: &Lvm, volumes: Vec<&LogicalVolume>) -> Result<()> {
        for volume in volumes {
            lvm.free(self, volume).await?;
        }
        Ok(())
    }

    async fn remove_incomplete(&self, lvm: &Lvm, found: &OwnVolume<'_>) -> Result<()> {
        if found.tags.is_deleting {
            lvm.end_removal(self, found.tags.id).await
        } else {
            lvm.discard(found.tags.id).await
        }
    }

    fn check_removable(&self, lvm: &Lvm, now: &GroupMetadata, found: &OwnVolume<'_>) -> Result<()> {
        lvm.check_not_copied(now, found.tags.id)
    }

    async fn check_unbound(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        found: &OwnVolume<'_>,
    ) -> Result<()> {
        lvm.check_unbound(now, self, found).await
    }

    async fn changed(
        &self,
        lvm: &Lvm,
        query: ChangedQuery,
        sink: Box<dyn RangeSink>,
    ) -> Result<()> {
        lvm.changed_thick(query, sink).await
    }

    async fn remove(&self, lvm: &Lvm, found: &OwnVolume<'_>) -> Result<()> {
        lvm.remove_thick(self, found.tags.id).await
    }

    async fn end_removal(&self, lvm: &Lvm, id: ImageId) -> Result<()> {
        lvm.end_removal(self, id).await
    }

    async fn extend(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        found: &OwnVolume<'_>,
        to: Size,
        was: Activation,
    ) -> Result<()> {
        let id = found.tags.id;
        // Recovery must not take the volume with this name for a leftover.
        let _hand = lvm.group.in_flight.take(name_of(id));
        let grown = match lvm.extend_thick(now, self, found, to).await {
            Ok(commands) => lvm.group.change(commands).await,
            Err(error) => Err(error),
        };
        if grown.is_err() {
            lvm.give_up_growth(id, was).await;
        }
        grown
    }

    async fn lengthen(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        _device: &Mapped,
    ) -> Result<()> {
        match lvm.refresh_if_short(now, volume)? {
            Some(refresh) => lvm.group.change(vec![refresh]).await,
            None => Ok(()),
        }
    }

    fn member_bytes(&self, now: &GroupMetadata, source: &LogicalVolume) -> Option<u64> {
        match source.kind {
            VolumeKind::Plain | VolumeKind::Mirrored => Some(
                self.store(now.bytes(source))
                    .next_multiple_of(now.extent_size),
            ),
            _ => None,
        }
    }

    async fn check_group_snapshot(
        &self,
        _lvm: &Lvm,
        now: &GroupMetadata,
        bytes: u64,
    ) -> Result<()> {
        check_stores(now, self, bytes)
    }

    async fn create_member(&self, lvm: &Lvm, now: &GroupMetadata, spec: &ImageSpec) -> Result<()> {
        let origin = spec.source()?;
        lvm.sync(now, origin).await?;
        let source = lvm.unmerged_volume(now, origin)?;
        let member = lvm.new_member(now, self, spec, &source)?;
        lvm.group.change(vec![member]).await
    }

    fn barrier_steps(
        &self,
        mapper: &DeviceMapper,
        now: &GroupMetadata,
        member: &LogicalVolume,
        _origin: &LogicalVolume,
    ) -> Result<(Vec<Step>, Vec<Step>)> {
        empty_again(mapper, &now.mapped_uuid(member))
    }

    /// Registers the exception stores of the members with dmeventd again, which may extend them: it stopped monitoring
    /// when their devices were removed before the freeze barrier. LVM starts dmeventd for the first snapshot, unless
    /// the host's settings disable monitoring.
    async fn follow_up_group_snapshot(&self, lvm: &Lvm, specs: &[ImageSpec]) -> Result<()> {
        match Dmeventd::now() {
            Dmeventd::Runs => lvm.monitor_copies(specs).await,
            _ => Ok(()),
        }
    }

    fn is_snapshot_of(&self, snapshot: &LogicalVolume, volume: &LogicalVolume) -> bool {
        match (&volume.kind, &snapshot.kind) {
            (VolumeKind::Plain | VolumeKind::Mirrored, VolumeKind::Snapshot { origin }) => {
                *origin == volume.name
            }
            _ => false,
        }
    }

    async fn check_rollback(
        &self,
        lvm: &Lvm,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        snapshot: &LogicalVolume,
    ) -> Result<()> {
        // The usage of a store is only known while it is active.
        lvm.activate(now, volume).await?;
        lvm.check_stores_of(now, self, volume, snapshot)?;
        let store = lvm.store(now, snapshot)?;
        blocking(move || cow_store::check(&store.node()?)).await
    }

    async fn roll_back(
        &self,
        lvm: &Lvm,
        _now: &GroupMetadata,
        volume: &OwnVolume<'_>,
        snapshot: &OwnVolume<'_>,
    ) -> Result<()> {
        lvm.roll_back_thick(volume.tags.id, snapshot.tags.id).await
    }
}

/// The layout of a segment, as people call it.
fn described(kind: &str, legs: u64) -> String {
    match (kind, legs) {
        ("striped", 1) => "linear".to_owned(),
        ("striped", stripes) => format!("striped over {stripes} disks"),
        ("raid1", legs) => format!("raid1 with {legs} legs"),
        (kind, _) => kind.to_owned(),
    }
}
