//! Snapshots that somebody has LVM merge into their volumes (`lvconvert --merge`), which LVM begins when nobody uses the
//! volume any more. Until that has ended the volume is used as before; what would go past the merge is refused.

use super::metadata::{LogicalVolume, VolumeGroup};
use crate::{Error, Kind, Result};

/// Refuses a change of a volume that a snapshot is being merged into: its bytes are about to be others, in a pool those of
/// another device, and LVM removes the snapshot with it.
///
/// # Errors
/// [`Kind::Busy`] when there is such a snapshot.
pub(super) fn check_no_merge(now: &VolumeGroup, volume: &LogicalVolume) -> Result<()> {
    let Some(snapshot) = now.merged_into(volume) else {
        return Ok(());
    };
    let (group, name) = (&now.name, &volume.name);
    Err(Error::new(
        Kind::Busy,
        format!(
            "snapshot {group}/{} is being merged into {group}/{name}; if the merge has not started, run lvchange --refresh {group}/{name} while the volume is not in use, then lvchange --poll y {group}/{name}; retry when lvs -a {group} no longer shows the snapshot",
            snapshot.name
        ),
    ))
}
