//! The names of logical volumes.

use crate::types::{ImageId, ImageKind};

/// The logical-volume name of an image.
pub(super) fn name_of(id: ImageId) -> String {
    let kind = match id.kind {
        ImageKind::Volume => 'v',
        ImageKind::Snapshot => 's',
        // Deleted.
        ImageKind::Trash => 'd',
        // They have no volume.
        ImageKind::Group | ImageKind::GroupSnapshot => 'g',
    };
    format!("dl-{kind}-{}", id.key)
}

/// The name of the temporary snapshot that an image is copied from.
pub(super) fn temporary_snapshot_of(id: ImageId) -> String {
    format!("dl-t-{}", id.key)
}

/// The name of the temporary volume as which the extents for an extension are wiped.
pub(super) fn end_of(id: ImageId) -> String {
    format!("dl-e-{}", id.key)
}
