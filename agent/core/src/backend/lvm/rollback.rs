//! Rollback of a volume to one of its snapshots, while it is not in use.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use drumlin_lvm::metadata::{GroupMetadata, LogicalVolume};

use super::{Lvm, OwnVolume, check_unused, devices::is_closed, is_mounted};
use crate::{Error, Kind, Result, blocking, host::device_mapper::DeviceMapper, types::ImageId};

/// Timeout for programs that open every changed device briefly (udevd, LVM scans).
const GLANCE: Duration = Duration::from_secs(1);

impl Lvm {
    /// Refuses a rollback that is not possible, or for which other snapshots have no room to keep the overwritten
    /// blocks.
    pub(super) async fn check_rollback(&self, pairs: &[(ImageId, ImageId)]) -> Result<()> {
        self.ready().await?;
        let now = self.group.now().await?;
        for (id, from) in pairs {
            let (volume, snapshot) = self.pair(&now, *id, *from)?;
            self.check_idle(&now, volume.volume).await?;
            self.volume_type()
                .check_rollback(self, &now, volume.volume, snapshot.volume)
                .await?;
        }
        Ok(())
    }

    /// Refuses a volume that is in use.
    pub(super) async fn check_idle(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
    ) -> Result<()> {
        let (group, uuid) = (Arc::clone(&self.group), now.mapped_uuid(volume));
        blocking(move || wait_until_unused(group.mapper()?, &uuid)).await
    }

    /// A volume, and a snapshot of it.
    pub(super) fn pair<'a>(
        &'a self,
        now: &'a GroupMetadata,
        id: ImageId,
        from: ImageId,
    ) -> Result<(OwnVolume<'a>, OwnVolume<'a>)> {
        let volume = self.unmerged_volume(now, id)?;
        let snapshot = self.complete_volume(now, from)?;
        let is_its = self
            .volume_type()
            .is_snapshot_of(snapshot.volume, volume.volume);
        let size = |ours: &OwnVolume<'_>| ours.tags.size.unwrap_or_else(|| now.bytes(ours.volume));
        if is_its && size(&snapshot) <= size(&volume) {
            return Ok((volume, snapshot));
        }
        Err(Error::new(
            Kind::Precondition,
            format!(
                "cannot roll back {id} to {from}: the volume was created anew after the snapshot"
            ),
        ))
    }

    /// Rolls a volume back to a snapshot of it.
    pub(super) async fn roll_back(&self, id: ImageId, from: ImageId) -> Result<()> {
        self.ready().await?;
        let now = self.group.now().await?;
        let (volume, snapshot) = self.pair(&now, id, from)?;
        self.volume_type()
            .roll_back(self, &now, &volume, &snapshot)
            .await
    }
}

/// Refuses a device that is in use, after the timeout for programs that only probe it. A volume without a device is
/// not in use.
pub(super) fn wait_until_unused(mapper: &DeviceMapper, uuid: &str) -> Result<()> {
    let deadline = Instant::now() + GLANCE;
    loop {
        let Some(device) = mapper.find(uuid)? else {
            return Ok(());
        };
        if is_closed(&device)? || Instant::now() >= deadline || is_mounted(&device)? {
            return check_unused(&device);
        }
        thread::sleep(Duration::from_millis(20));
    }
}
