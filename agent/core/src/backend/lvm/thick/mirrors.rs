//! Lost legs of mirrors: the metadata shows missing disks; the kernel shows disks that failed, or were temporarily
//! away, since the mirror was activated.

use drumlin_lvm::metadata::{GroupMetadata, LogicalVolume, VolumeKind};

use crate::Result;
use crate::backend::{
    Reason,
    lvm::{Health, Lvm},
};

/// The suffixes that LVM adds to the UUID of the device with a volume's own extents when another device is stacked on
/// it: for snapshots, a cache or a thin pool (`build_dm_uuid` in its `lib/misc/lvm-string.c`).
const LAYERS: [&str; 4] = ["-real", "-tdata", "-tmeta", ""];

impl Lvm {
    /// The health of a mirrored volume: degraded if a leg is lost.
    pub(crate) fn mirror_health(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
    ) -> Result<Health> {
        let path = self.group.path(&volume.name);
        if self.has_lost_leg(now, volume)? {
            return Ok(Health::degraded(
                Reason::MirrorLegLost,
                format!(
                    "a leg of its mirror is lost; reconnect the disk and run lvchange --refresh {path}, or replace it and run lvconvert --repair {path}",
                ),
            ));
        }
        let shared = self.shared_leg(now, volume);
        Ok(shared.map_or(Health::Good, |why| {
            Health::degraded(Reason::MirrorLegsShareDisk, why)
        }))
    }

    /// The warning for a pool that is on a mirror with a lost leg.
    pub(crate) fn mirrors_of_pool(
        &self,
        now: &GroupMetadata,
        pool: &LogicalVolume,
    ) -> Result<Option<String>> {
        let lost = self.lost_mirror(now, pool)?;
        Ok(lost.map(|mirror| {
            format!(
                "a leg of its mirror {} is lost; reconnect the disk and run lvchange --refresh {}, or replace it and run lvconvert --repair {}",
                mirror.name,
                self.group.path(&pool.name),
                self.group.path(&mirror.name)
            )
        }))
    }

    /// The first mirror with a lost leg among the parts of a volume, or the volume itself.
    pub(crate) fn lost_mirror<'a>(
        &self,
        now: &'a GroupMetadata,
        volume: &'a LogicalVolume,
    ) -> Result<Option<&'a LogicalVolume>> {
        if volume.kind == VolumeKind::Mirrored {
            return Ok(self.has_lost_leg(now, volume)?.then_some(volume));
        }
        let parts = volume.parts.iter().chain(&volume.below);
        for part in parts.filter_map(|part| now.volumes.get(part)) {
            if let Some(lost) = self.lost_mirror(now, part)? {
                return Ok(Some(lost));
            }
        }
        Ok(None)
    }

    fn has_lost_leg(&self, now: &GroupMetadata, volume: &LogicalVolume) -> Result<bool> {
        let (mapper, uuid) = (self.group.mapper()?, now.mapped_uuid(volume));
        for layer in LAYERS {
            if let Some(status) = mapper.status(&format!("{uuid}{layer}"))? {
                // "raid1 2 AA …": a dead leg has a D.
                let legs = status.split_whitespace().nth(2).unwrap_or_default();
                return Ok(legs.contains('D') || volume.is_degraded);
            }
        }
        Ok(volume.is_degraded)
    }
}
