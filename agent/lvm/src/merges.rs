//! Snapshots that an administrator merges into their origin (`lvconvert --merge`), which LVM starts when the volume
//! is no longer in use. Until the merge is complete the volume remains usable; operations that would bypass the merge
//! are refused.

use crate::metadata::{GroupMetadata, LogicalVolume};
use crate::{Error, Kind, Result};

/// Refuses to change a volume that a snapshot is being merged into: its contents are about to change (in a pool, it
/// gets another device), and LVM removes the snapshot.
///
/// # Errors
/// [`Kind::Busy`] when there is such a snapshot.
pub fn check_no_merge(now: &GroupMetadata, volume: &LogicalVolume) -> Result<()> {
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
