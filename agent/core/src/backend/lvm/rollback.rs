//! Rollback of a volume to one of its snapshots, while it is not in use.
//!
//! In a pool, the volume's thin device is deleted and created again as a snapshot of the snapshot, with its old
//! number: LVM's metadata does not change. For a thick volume, the blocks that were overwritten since are copied back
//! from the snapshot.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use drumlin_lvm::metadata::{GroupMetadata, LogicalVolume, VolumeKind};

use super::{
    Lvm, OwnVolume, check_unused, is_mounted, settings::Thick, thick::copy::What,
    thick::wipe::stopped,
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{
        cow_store,
        device_mapper::{DeviceMapper, Mapped, SECTOR},
    },
    types::ImageId,
};

/// Timeout for programs that open every changed device briefly (udevd, LVM scans).
const GLANCE: Duration = Duration::from_secs(1);

impl Lvm {
    /// Refuses a rollback that is not possible, or for which other snapshots have no room to keep the overwritten
    /// blocks.
    pub(super) async fn check_rollback(&self, pairs: &[(ImageId, ImageId)]) -> Result<()> {
        self.ready().await?;
        let now = self.group.now().await?;
        for (id, from) in pairs {
            let (volume, moment) = self.pair(&now, *id, *from)?;
            self.check_idle(&now, volume.volume).await?;
            self.volume_type()
                .check_rollback(self, &now, volume.volume, moment.volume)
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

    /// Makes sure that the pool has the snapshot's device as LVM's metadata describes it.
    pub(super) async fn check_is_in_pool(
        &self,
        now: &GroupMetadata,
        moment: &LogicalVolume,
    ) -> Result<()> {
        if let VolumeKind::Thin { pool, .. } = &moment.kind
            && let Some((pool, _)) = now.pool(pool)
            && self.group.mapper()?.find(&now.pool_uuid(pool))?.is_none()
        {
            self.activate(now, moment).await?;
        }
        self.hidden_status(now, moment).await.map(drop)
    }

    /// The exception store of an active snapshot.
    pub(super) fn store(&self, now: &GroupMetadata, moment: &LogicalVolume) -> Result<Mapped> {
        let uuid = format!("{}-cow", now.mapped_uuid(moment));
        let store = self.group.mapper()?.find(&uuid)?;
        store.ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!(
                    "snapshot {} is active but its exception store is not",
                    self.group.path(&moment.name)
                ),
            )
        })
    }

    /// A volume, and a snapshot of it.
    fn pair<'a>(
        &'a self,
        now: &'a GroupMetadata,
        id: ImageId,
        from: ImageId,
    ) -> Result<(OwnVolume<'a>, OwnVolume<'a>)> {
        let volume = self.settled(now, id)?;
        let moment = self.finished(now, from)?;
        let is_its = self
            .volume_type()
            .is_snapshot_of(moment.volume, volume.volume);
        let size = |ours: &OwnVolume<'_>| ours.tags.size.unwrap_or_else(|| now.bytes(ours.volume));
        if is_its && size(&moment) <= size(&volume) {
            return Ok((volume, moment));
        }
        Err(Error::new(
            Kind::Precondition,
            format!(
                "cannot roll back {id} to {from}: the volume was created anew after the snapshot"
            ),
        ))
    }

    /// Checks the exception stores of the other snapshots, which keep the overwritten blocks.
    pub(super) fn check_stores_of(
        &self,
        now: &GroupMetadata,
        thick: &Thick,
        volume: &LogicalVolume,
        moment: &LogicalVolume,
    ) -> Result<()> {
        let mapper = self.group.mapper()?;
        let used = |snapshot: &LogicalVolume| -> Result<(u64, u64)> {
            let words = mapper.status(&now.mapped_uuid(snapshot))?;
            Ok(words.as_deref().and_then(parse_store).unwrap_or((0, 0)))
        };
        let (written, _) = used(moment)?;
        for snapshot in now.snapshots_of(volume) {
            if snapshot.uuid == moment.uuid {
                continue;
            }
            let (own, all) = used(snapshot)?;
            // A store that is full already loses nothing more.
            if all > 0 && own < all && own.saturating_add(written) > all {
                return Err(Error::new(
                    Kind::NoSpace,
                    format!(
                        "snapshot {} has {} free bytes in its exception store, but the rollback would overwrite {written} bytes; delete that snapshot, or roll back without keeping a snapshot of the current state (snapshotSize of the class is {})",
                        self.group.path(&snapshot.name),
                        all - own,
                        thick.store(now.bytes(volume))
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Rolls a volume back to a snapshot of it.
    pub(super) async fn roll_back(&self, id: ImageId, from: ImageId) -> Result<()> {
        self.ready().await?;
        let now = self.group.now().await?;
        let (volume, moment) = self.pair(&now, id, from)?;
        self.volume_type()
            .roll_back(self, &now, &volume, &moment)
            .await
    }

    pub(super) async fn roll_back_thin(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        moment: &LogicalVolume,
    ) -> Result<()> {
        let (
            VolumeKind::Thin { pool, device, .. },
            VolumeKind::Thin {
                device: snapshot, ..
            },
        ) = (&volume.kind, &moment.kind)
        else {
            return Err(Error::new(
                Kind::Bug,
                "a volume of a thin class is not thin",
            ));
        };
        let (pool, _) = now.pool(pool).ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!("thin pool {pool} does not exist any more"),
            )
        })?;
        let pool = now.pool_uuid(pool);
        // After an interruption the volume may have no device in the pool, so that it cannot be activated.
        self.check_is_in_pool(now, moment).await?;
        self.check_idle(now, volume).await?;
        let was_active = self.device(now, volume)?.is_some();
        let (delete, create) = (
            format!("delete {device}"),
            format!("create_snap {device} {snapshot}"),
        );
        let uuid = now.mapped_uuid(volume);
        let (group, seen) = (Arc::clone(&self.group), (volume.clone(), moment.clone()));
        blocking(move || {
            // No other process may change the pool meanwhile, and the metadata read before may be outdated.
            let lock = group.lock();
            let _lock = lock.map_err(|error| {
                Error::new(Kind::HalfDone, "could not lock the volume group").because(error)
            })?;
            let now = group.read_known();
            let is_there = |one: &LogicalVolume| {
                let found = now.as_ref().and_then(|now| now.volumes.get(&one.name));
                found.is_some_and(|found| found.uuid == one.uuid && found.kind == one.kind)
            };
            if !is_there(&seen.0) || !is_there(&seen.1) {
                return Err(Error::new(
                    Kind::HalfDone,
                    format!("another process is changing volume group {}", group.name),
                ));
            }
            let mapper = group.mapper()?;
            fail::point("lvm.rollback.locked");
            // Checked again: udevd probes a device that was closed after a write, possibly after the first check.
            wait_until_unused(mapper, &uuid)?;
            if mapper.find(&uuid)?.is_some() {
                mapper.remove(&uuid)?;
            }
            fail::point("lvm.rollback.unmapped");
            match mapper.message(&pool, &delete) {
                // An earlier attempt was interrupted between the two.
                Err(error) if error.kind() == Kind::NotFound => {}
                other => other?,
            }
            fail::point("lvm.rollback.deleted");
            mapper.message(&pool, &create)?;
            fail::point("lvm.rollback.made");
            Ok(())
        })
        .await?;
        if was_active {
            // Activated by LVM, which gives udev all it needs.
            self.activate(now, volume).await?;
        }
        Ok(())
    }

    pub(super) async fn roll_back_thick(&self, id: ImageId, from: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        let (volume, moment) = self.pair(&now, id, from)?;
        let origin = self.activate(&now, volume.volume).await?;
        let snapshot = self.activate(&now, moment.volume).await?;
        self.check_idle(&now, volume.volume).await?;
        let store = self.store(&now, moment.volume)?;
        let progress = self
            .running
            .begin(id, What::RollingBack, now.bytes(volume.volume));
        blocking(move || {
            let store = store.node()?;
            cow_store::roll_back(&store, &snapshot, &origin, |at| {
                fail::point("thick.rollback.step");
                if progress.goes_on(at) {
                    return Ok(());
                }
                Err(stopped(id))
            })
        })
        .await
    }
}

/// Refuses a device that is in use, after the timeout for programs that only probe it. A volume without a device is
/// not in use.
fn wait_until_unused(mapper: &DeviceMapper, uuid: &str) -> Result<()> {
    let deadline = Instant::now() + GLANCE;
    loop {
        let Some(device) = mapper.find(uuid)? else {
            return Ok(());
        };
        if device.open == 0 || Instant::now() >= deadline || is_mounted(&device)? {
            return check_unused(&device);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Parses the status of an exception store: the bytes used, and the total.
fn parse_store(words: &str) -> Option<(u64, u64)> {
    // "<used>/<all> <metadata>", in sectors.
    let (used, all) = words.split_whitespace().next()?.split_once('/')?;
    let bytes = |sectors: &str| sectors.parse::<u64>().ok()?.checked_mul(SECTOR);
    Some((bytes(used)?, bytes(all)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_says_how_full_it_is() {
        for (words, store) in [
            ("16/8192 16", Some((8192, 4 << 20))),
            ("Invalid", None),
            ("", None),
        ] {
            assert_eq!(parse_store(words), store, "{words}");
        }
    }
}
