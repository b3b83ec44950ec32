//! Rollback of a thin volume: its thin device is deleted and created again as a snapshot of the snapshot, with its old
//! number. LVM's metadata does not change.

use std::sync::Arc;

use drumlin_lvm::metadata::{GroupMetadata, LogicalVolume, VolumeKind};

use crate::{
    Error, Kind, Result,
    backend::lvm::{Lvm, rollback::wait_until_unused},
    blocking, fail,
};

impl Lvm {
    /// Makes sure that the pool has the snapshot's device as LVM's metadata describes it.
    pub(crate) async fn check_is_in_pool(
        &self,
        now: &GroupMetadata,
        snapshot: &LogicalVolume,
    ) -> Result<()> {
        if let VolumeKind::Thin { pool, .. } = &snapshot.kind
            && let Some((pool, _)) = now.pool(pool)
            && self.group.mapper()?.find(&now.pool_uuid(pool))?.is_none()
        {
            self.activate(now, snapshot).await?;
        }
        self.hidden_status(now, snapshot).await.map(drop)
    }

    /// Rolls a volume back; repeated after an interruption, it finds what is done.
    pub(crate) async fn roll_back_thin(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        snapshot: &LogicalVolume,
    ) -> Result<()> {
        let (VolumeKind::Thin { pool, device, .. }, VolumeKind::Thin { device: source, .. }) =
            (&volume.kind, &snapshot.kind)
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
        self.check_is_in_pool(now, snapshot).await?;
        self.check_idle(now, volume).await?;
        let was_active = self.device(now, volume)?.is_some();
        let (delete, create) = (
            format!("delete {device}"),
            format!("create_snap {device} {source}"),
        );
        let uuid = now.mapped_uuid(volume);
        let (group, seen) = (Arc::clone(&self.group), (volume.clone(), snapshot.clone()));
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
}
