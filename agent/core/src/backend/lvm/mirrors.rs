//! Legs of mirrors that are lost: told by the metadata where a disk is missing, and by the kernel where it has been
//! away, or has failed, since the mirror was activated.

use super::{
    Health, Lvm,
    metadata::{LogicalVolume, VolumeGroup, VolumeKind},
};
use crate::Result;

/// What LVM adds to the uuid of the device with a volume's own extents where another one is over it, which shows its
/// snapshots, caches it or is a thin pool (`build_dm_uuid` in its `lib/misc/lvm-string.c`).
const LAYERS: [&str; 4] = ["-real", "-tdata", "-tmeta", ""];

impl Lvm {
    /// Whether a mirrored volume has all its legs.
    pub(super) fn mirror_health(
        &self,
        now: &VolumeGroup,
        volume: &LogicalVolume,
    ) -> Result<Health> {
        let path = self.group.path(&volume.name);
        if self.has_lost_leg(now, volume)? {
            return Ok(Health::Degraded(format!(
                "a leg of its mirror is lost; reconnect the disk and run lvchange --refresh {path}, or replace it and run lvconvert --repair {path}",
            )));
        }
        let shared = self.shared_leg(now, volume);
        Ok(shared.map_or(Health::Good, Health::Degraded))
    }

    /// Why a pool may not be able to go on, if it is on a mirror that has lost a leg.
    pub(super) fn mirrors_of_pool(
        &self,
        now: &VolumeGroup,
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

    /// The first mirror, of those that a volume is made of, that has lost a leg; the volume itself, if it is one.
    pub(super) fn lost_mirror<'a>(
        &self,
        now: &'a VolumeGroup,
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

    fn has_lost_leg(&self, now: &VolumeGroup, volume: &LogicalVolume) -> Result<bool> {
        let (mapper, uuid) = (self.group.mapper()?, now.mapped_uuid(volume));
        for layer in LAYERS {
            if let Some(status) = mapper.status(&format!("{uuid}{layer}"))? {
                // "raid1 2 AA …": a leg that is dead has a D.
                let legs = status.split_whitespace().nth(2).unwrap_or_default();
                return Ok(legs.contains('D') || volume.is_degraded);
            }
        }
        Ok(volume.is_degraded)
    }
}
