//! Settings of a class over logical volumes.

use std::time::Duration;

use crate::{
    backend::Adoption,
    host::FileSystem,
    types::{ClassName, NodeName},
};
use drumlin_lvm::{Extents, placement};

/// Settings of a class over logical volumes.
#[derive(Debug, Clone)]
pub struct LvmSettings {
    /// The volume group.
    pub volume_group: String,
    /// The type of its volumes.
    pub provisioning: Provisioning,
    /// The name of the class.
    pub class: ClassName,
    /// This node.
    pub node: NodeName,
    /// The default file system of new volumes.
    pub file_system: FileSystem,
    /// Timeout of the freeze barrier of a group snapshot; one second by default.
    pub longest_freeze: Option<Duration>,
    /// The nodes whose volumes it adopts, if any.
    pub adoption: Option<Adoption>,
}

/// The types of volumes, with their settings.
#[derive(Debug, Clone)]
pub enum Provisioning {
    /// Blocks are allocated in a pool on the first write.
    Thin(ThinPool),
    /// All extents are allocated at creation.
    Thick(Thick),
}

/// A thin pool.
#[derive(Debug, Clone)]
pub struct ThinPool {
    /// Its name.
    pub name: String,
    /// The overcommit limit, in percent of the size of the pool.
    pub overcommit: u32,
    /// The fill limits of the pool.
    pub limits: PoolLimits,
    /// How to create the pool when it does not exist; none to never create it.
    pub create: Option<NewPool>,
}

/// A thin pool that is created when it is first needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewPool {
    /// The size of the pool.
    pub size: PoolSize,
    /// The chunk size, in bytes.
    pub chunk: u64,
    /// The size of its metadata in bytes; none for as much as its chunks need.
    pub metadata: Option<u64>,
}

/// The size of a new pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolSize {
    /// The size of its data, in bytes.
    Data(u64),
    /// The total with metadata, in percent of the volume group's size.
    OfGroup(u32),
    /// The total with metadata, in percent of the volume group's free space.
    OfFree(u32),
}

/// Fill limits of a pool, in percent of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLimits {
    /// Limit for its data: above it no new volumes are accepted, so that existing ones can continue.
    pub data_limit: u32,
    /// Limit for its metadata.
    pub metadata_limit: u32,
    /// The data usage from which a warning is logged.
    pub warn_at: u32,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            data_limit: 95,
            // LVM itself refuses at three quarters of small metadata; this limit is reached first and gives a reason.
            metadata_limit: 75,
            warn_at: 80,
        }
    }
}

/// Thick volumes: all extents are allocated at creation.
#[derive(Debug, Clone)]
pub struct Thick {
    /// The layout on the disks.
    pub layout: Layout,
    /// The part of the group that is kept free, in percent of its size.
    pub reserve: u32,
    /// The size of a snapshot's exception store, in percent of its volume's size; at 100 it can never overflow.
    pub snapshot_size: u32,
    /// How the data of former and deleted volumes is wiped.
    pub wipe: Wipe,
    /// True if deleting a volume deletes its snapshots; otherwise a volume with snapshots is not deleted.
    pub deletes_snapshots: bool,
}

/// The layout of a volume's extents on the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Wherever there is room.
    Linear,
    /// Striped across this number of disks.
    Striped(u32),
    /// Mirrored on this number of disks besides the first (raid1).
    Mirrored(u32),
}

/// How the data of former volumes is wiped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wipe {
    /// Overwritten with zeros.
    Zero,
    /// Discarded; what the disk returns afterwards depends on the disk.
    Discard,
    /// Not wiped.
    None,
}

impl Layout {
    /// Number of disks that a volume needs.
    pub(super) fn disks(self) -> u32 {
        match self {
            Self::Linear => 1,
            Self::Striped(stripes) => stripes,
            Self::Mirrored(mirrors) => mirrors + 1,
        }
    }

    /// The number of extents that a volume's length is a multiple of.
    pub(super) fn unit(self) -> u32 {
        match self {
            Self::Striped(stripes) => stripes,
            Self::Linear | Self::Mirrored(_) => 1,
        }
    }

    /// The layout of a volume that is not a mirror, or not any more: an administrator may have removed its legs.
    pub(super) fn of_plain(self) -> Self {
        match self {
            Self::Mirrored(_) => Self::Linear,
            Self::Linear | Self::Striped(_) => self,
        }
    }

    /// The largest volume that fits, given the lengths of the free areas of each disk; `kept` in total stays free.
    ///
    /// LVM places a striped one. A mirrored one has each leg on one disk, plus one extent of raid metadata.
    pub(super) fn largest(self, free: &[Vec<Extents>], kept: Extents) -> Extents {
        let mut disks: Vec<Extents> = free.iter().map(|areas| areas.iter().sum()).collect();
        let usable = disks.iter().sum::<Extents>().less(kept);
        match self {
            Self::Linear => usable,
            Self::Striped(stripes) => {
                let stripes = stripes.max(1);
                let parts = usize::try_from(stripes).unwrap_or(usize::MAX);
                let rows = placement::stripe_rows(free, parts);
                let stripes = u64::from(stripes);
                rows.min(usable.shared_by(stripes)).times(stripes)
            }
            Self::Mirrored(mirrors) => {
                disks.sort_unstable_by(|one, other| other.cmp(one));
                let last = usize::try_from(mirrors).unwrap_or(usize::MAX);
                let smallest = disks.get(last).copied().unwrap_or_default();
                let copies = u64::from(mirrors) + 1;
                smallest.min(usable.shared_by(copies)).less(placement::NOTE)
            }
        }
    }

    /// The arguments of `lvcreate` for this layout.
    pub(super) fn words(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Linear => &[],
            Self::Striped(_) => &["-I", "64k", "-i"],
            Self::Mirrored(_) => &["--type", "raid1", "-m"],
        };
        let number = match self {
            Self::Linear => None,
            Self::Striped(number) | Self::Mirrored(number) => Some(number.to_string()),
        };
        let words = words.iter().map(|word| (*word).to_owned());
        words.chain(number).collect()
    }
}

impl Thick {
    /// The size of the exception store for a snapshot of a volume of this size, both in bytes.
    pub(super) fn store(&self, volume: u64) -> u64 {
        /// The chunk size of the store, and the number of table entries in one chunk (`dm-snap-persistent.c`).
        const CHUNK: u64 = 4096;
        const ENTRIES: u64 = CHUNK / 16;
        let part = u128::from(volume) * u128::from(self.snapshot_size) / 100;
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        // All chunks, a table chunk for each group of them, the header, and one that is never used.
        let chunks = volume.div_ceil(CHUNK);
        let most = (chunks + chunks.div_ceil(ENTRIES) + 2).saturating_mul(CHUNK);
        if self.snapshot_size >= 100 {
            most
        } else {
            part.min(most)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same with disks that are not fragmented.
    fn largest(layout: Layout, free: &[u64], kept: u64) -> u64 {
        let free: Vec<Vec<Extents>> = free.iter().map(|free| vec![Extents(*free)]).collect();
        layout.largest(&free, Extents(kept)).0
    }

    #[test]
    fn what_one_disk_has_left_is_nothing_to_stripes_and_mirrors() {
        assert_eq!(largest(Layout::Linear, &[100, 40, 1], 0), 141);
        assert_eq!(largest(Layout::Linear, &[100, 40, 1], 41), 100);
        assert_eq!(largest(Layout::Linear, &[100, 40], 141), 0);
        assert_eq!(largest(Layout::Striped(2), &[100, 40], 0), 80);
        assert_eq!(largest(Layout::Striped(2), &[100, 40, 30], 0), 140);
        assert_eq!(largest(Layout::Striped(2), &[100, 100], 101), 98);
        assert_eq!(largest(Layout::Striped(3), &[100, 40], 0), 0);
        assert_eq!(largest(Layout::Mirrored(1), &[101, 41], 0), 40);
        assert_eq!(largest(Layout::Mirrored(1), &[101, 101], 2), 99);
        assert_eq!(largest(Layout::Mirrored(1), &[100], 0), 0);
        assert_eq!(largest(Layout::Mirrored(1), &[], 0), 0);
    }

    #[test]
    fn no_more_is_promised_than_lvm_makes_of_three_disks() {
        assert_eq!(largest(Layout::Striped(2), &[100, 100, 100], 0), 200);
        assert_eq!(largest(Layout::Mirrored(1), &[100, 100, 100], 0), 99);
        assert_eq!(largest(Layout::Mirrored(1), &[40, 40, 100], 0), 39);
        assert_eq!(largest(Layout::Mirrored(2), &[40, 50, 100], 0), 39);
    }

    #[test]
    fn a_store_of_a_hundred_percent_holds_every_chunk_and_its_table() {
        let thick = |snapshot_size| Thick {
            layout: Layout::Linear,
            reserve: 0,
            snapshot_size,
            wipe: Wipe::Zero,
            deletes_snapshots: false,
        };
        assert_eq!(thick(20).store(100 << 20), 20 << 20);
        assert_eq!(thick(100).store(100 << 20), (100 << 20) + 102 * 4096);
        assert_eq!(thick(300).store(100 << 20), thick(100).store(100 << 20));
    }
}
