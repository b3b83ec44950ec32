//! Layers that an administrator has added to a thick volume: caches, checksums, deduplication. The volume remains
//! usable; operations that would have to bypass the layer are refused.

use drumlin_lvm::metadata::{GroupMetadata, LogicalVolume};

use super::{Health, Lvm, OwnVolume};
use crate::backend::Reason;
use crate::{Error, Kind, Result};

impl Lvm {
    /// The health of a volume's layer; assumed to be good while the volume is inactive.
    pub(super) fn layer_health(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        layer: &str,
    ) -> Result<Health> {
        let path = self.group.path(&volume.name);
        let status = self.layer_status(now, volume, layer)?;
        if let Some(trouble) = status.and_then(|status| trouble(layer, &status, &path)) {
            return Ok(trouble);
        }
        if volume.is_degraded || self.lost_mirror(now, volume)?.is_some() {
            return Ok(Health::degraded(
                Reason::MirrorLegLost,
                format!(
                    "a leg of a mirror below its {layer} is lost; see lvs -a -o +devices {}",
                    now.name
                ),
            ));
        }
        Ok(Health::Good)
    }

    /// The kernel's status of a layer.
    fn layer_status(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        layer: &str,
    ) -> Result<Option<String>> {
        let mapper = self.group.mapper()?;
        let uuid = now.mapped_uuid(volume);
        if layer == "vdo" {
            // The VDO pool does the work.
            let mut pools = volume.below.iter().filter_map(|name| now.volumes.get(name));
            return match pools.next() {
                Some(pool) => mapper.status(&format!("{}-vpool", now.mapped_uuid(pool))),
                None => Ok(None),
            };
        }
        // For a volume with snapshots, the layer is below the device that they need.
        match mapper.status(&format!("{uuid}-real"))? {
            Some(status) => Ok(Some(status)),
            None => mapper.status(&uuid),
        }
    }

    /// Refuses to extend a volume with a layer: LVM extends the layer's device at once, so the new extents could not
    /// be wiped before they are visible.
    pub(super) fn check_no_layer(&self, now: &GroupMetadata, found: &OwnVolume<'_>) -> Result<()> {
        let Some(layer) = now.layer_of(found.volume) else {
            return Ok(());
        };
        Err(Error::new(
            Kind::Precondition,
            format!(
                "volume {} cannot be extended while a layer of type {layer} covers its extents; {}, extend it, and add the layer again",
                self.handle(found.tags.id),
                removal(layer, &self.group.path(&found.volume.name))
            ),
        ))
    }
}

/// Refuses a snapshot that LVM would start and not complete: it checks the metadata of a cache volume (not of a cache
/// pool) while that is in use, and stops half-way. Seen with 2.03.16.
pub(super) fn check_snapshot_over(origin: &LogicalVolume, path: &str) -> Result<()> {
    let uses_volume = origin.layer.as_deref() == Some("cache")
        && origin.below.iter().any(|name| name.ends_with("_cvol"));
    if !uses_volume {
        return Ok(());
    }
    Err(Error::new(
        Kind::Precondition,
        format!(
            "cannot create snapshots of {path}: LVM does not support that for volumes with a cache volume; {}, or use a cache pool (lvconvert --type cache --cachepool)",
            removal("cache", path)
        ),
    ))
}

/// The command that removes the layer of a volume and keeps the volume.
fn removal(layer: &str, path: &str) -> String {
    match layer {
        "cache" | "writecache" => format!("remove it with lvconvert --splitcache {path}"),
        "integrity" => format!("remove it with lvconvert --raidintegrity n {path}"),
        _ => format!("copy {path} to a volume without that layer"),
    }
}

/// The problem in the kernel's status of a layer, if any (see cache, writecache and vdo in the kernel's device-mapper
/// documentation).
fn trouble(layer: &str, status: &str, path: &str) -> Option<Health> {
    let words: Vec<&str> = status.split_whitespace().collect();
    let cure = removal(layer, path);
    match (layer, words.as_slice()) {
        ("cache" | "writecache", ["Fail" | "Error", ..]) => Some(Health::damaged(
            Reason::CacheFailed,
            format!("its cache has failed; {cure}"),
        )),
        ("cache", [.., "ro", _] | [.., "needs_check"]) => Some(Health::degraded(
            Reason::CacheMetadataDamaged,
            format!("the metadata of its cache is damaged; {cure}"),
        )),
        ("writecache", [error, ..]) if *error != "0" => Some(Health::damaged(
            Reason::CacheFailed,
            format!("its cache has failed with error {error}; reconnect its disk, or {cure}"),
        )),
        ("vdo", [_, "read-only", ..]) => Some(Health::damaged(
            Reason::VdoReadOnly,
            "its VDO pool is read-only after an error; see the kernel's log and lvmvdo(7)",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_layer_is_read_from_its_status() {
        let cache = "8 9/2048 128 0/192 0 36 0 0 0 0 0 3 metadata2 writethrough no_discard_passdown 2 migration_threshold 2048 mq 10 random_threshold 0";
        let good = [
            ("cache", format!("{cache} rw -")),
            (
                "writecache",
                "0 5100 5100 0 84 0 0 0 0 0 0 0 0 0".to_owned(),
            ),
            (
                "vdo",
                "/dev/dm-3 normal - online online 1500 262144".to_owned(),
            ),
            ("integrity", "0 81920 -".to_owned()),
        ];
        for (layer, status) in good {
            assert_eq!(trouble(layer, &status, "vg/v"), None, "{layer}");
        }
        let damaged = [
            ("cache", "Fail"),
            ("writecache", "-5 5100 5100 0"),
            ("vdo", "/dev/dm-3 read-only - closed offline 1500 262144"),
        ];
        for (layer, status) in damaged {
            let found = trouble(layer, status, "vg/v");
            assert!(
                matches!(found, Some(Health::Damaged(_))),
                "{layer}: {found:?}"
            );
        }
        for end in ["rw needs_check", "ro -"] {
            let found = trouble("cache", &format!("{cache} {end}"), "vg/v");
            assert!(matches!(found, Some(Health::Degraded(_))), "{found:?}");
        }
    }
}
