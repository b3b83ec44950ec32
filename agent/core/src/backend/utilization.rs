//! How much of its storage a class uses, and has promised.

use std::fmt;

use super::Capacity;
use crate::types::Size;

/// The type of the storage of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageKind {
    /// Image files in a directory.
    Directory,
    /// Volumes in a thin pool.
    Thin,
    /// Volumes of a volume group's own extents.
    Thick,
}

impl fmt::Display for StorageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Directory => "directory",
            Self::Thin => "thin",
            Self::Thick => "thick",
        })
    }
}

/// The storage of a class: file system, thin pool or volume group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Its size.
    pub size: Size,
    /// Sum of the sizes promised to volumes, and of the exception stores of thick volumes' snapshots. All volumes of a
    /// thin pool count, foreign ones too.
    pub promised: Size,
    /// The used part in percent, if known.
    pub data_percent: Option<u32>,
    /// The used part that deletions in progress free, in percent: thick volumes are wiped before their extents are free.
    pub deleting_percent: u32,
    /// The used part of the metadata of a thin pool in percent, if known.
    pub metadata_percent: Option<u32>,
}

/// What a class uses of its storage, read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Utilization {
    /// Its storage.
    pub space: Space,
    /// Its remaining capacity.
    pub capacity: Capacity,
    /// Number of its volumes, without snapshots.
    pub volumes: u64,
    /// Its trash.
    pub trash: TrashUse,
}

/// What is in the trash of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrashUse {
    /// Number of its volumes.
    pub volumes: u64,
    /// Sum of their sizes.
    pub size: Size,
}

impl FromIterator<u64> for TrashUse {
    /// From the size in bytes of each volume.
    fn from_iter<I: IntoIterator<Item = u64>>(sizes: I) -> Self {
        let mut volumes = 0;
        let size = sum(sizes.into_iter().inspect(|_| volumes += 1));
        Self { volumes, size }
    }
}

/// The part that is used, in percent; 0 of nothing.
pub(crate) fn percent(used: u64, total: u64) -> u32 {
    let percent = u128::from(used) * 100 / u128::from(total.max(1));
    u32::try_from(percent).unwrap_or(u32::MAX)
}

/// A sum of sizes; the largest size if it exceeds that.
pub(crate) fn sum(sizes: impl IntoIterator<Item = u64>) -> Size {
    let sum = sizes.into_iter().fold(0, u64::saturating_add);
    Size::try_from(sum).unwrap_or(Size::MAX)
}
