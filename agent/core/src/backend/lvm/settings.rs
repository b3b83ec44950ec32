//! What a class over logical volumes is told.

use std::time::Duration;

use super::placement;
use crate::{
    backend::Adoption,
    host::FileSystem,
    types::{ClassName, NodeName},
};

/// What a class over logical volumes is told.
#[derive(Debug, Clone)]
pub struct LvmSettings {
    /// The volume group.
    pub volume_group: String,
    /// What kind of volumes it makes.
    pub volumes: Volumes,
    /// The class whose volumes these are.
    pub class: ClassName,
    /// This node.
    pub node: NodeName,
    /// The file system of a volume whose creator named none.
    pub file_system: FileSystem,
    /// The longest that a group snapshot has the writers of a volume wait; a second if nothing is said.
    pub longest_freeze: Option<Duration>,
    /// Whose volumes it takes over, if anybody's.
    pub adoption: Option<Adoption>,
}

/// The kinds of volumes.
#[derive(Debug, Clone)]
pub enum Volumes {
    /// They take from a pool what is written to them.
    Thin(ThinPool),
    /// They have all their extents from the start.
    Thick(Thick),
}

/// A thin pool.
#[derive(Debug, Clone)]
pub struct ThinPool {
    /// Its name.
    pub name: String,
    /// So many times its size may be promised, in hundredths.
    pub overcommit: u32,
    /// How full it may become.
    pub guard: PoolGuard,
    /// How it is made when it is not there; never, if nothing is said.
    pub create: Option<NewPool>,
}

/// A thin pool that is made when it is first needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewPool {
    /// How large it is.
    pub size: PoolSize,
    /// What it gives to volumes at a time, in bytes.
    pub chunk: u64,
    /// The bytes of its metadata; as many as its chunks need, if nothing is said.
    pub metadata: Option<u64>,
}

/// How large a new pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolSize {
    /// Its data, in bytes.
    Data(u64),
    /// All that is made for it, in hundredths of the whole volume group.
    OfGroup(u32),
    /// All that is made for it, in hundredths of what the volume group has free.
    OfFree(u32),
}

/// How full a pool may become, in hundredths of what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolGuard {
    /// With so much of its data used it takes nothing new: what is in it must be able to go on.
    pub data_limit: u32,
    /// The same for its metadata.
    pub metadata_limit: u32,
    /// With so much of its data used there is a warning.
    pub warn_at: u32,
}

impl Default for PoolGuard {
    fn default() -> Self {
        Self {
            data_limit: 95,
            // LVM itself refuses at three quarters of small metadata; before that we do, with a reason.
            metadata_limit: 75,
            warn_at: 80,
        }
    }
}

/// Volumes that have all their extents from the start.
#[derive(Debug, Clone)]
pub struct Thick {
    /// How they lie on the disks.
    pub layout: Layout,
    /// So much of the group is left free, in hundredths of its size.
    pub reserve: u32,
    /// The exception store of a snapshot, in hundredths of its volume's size; a hundred can never overflow.
    pub snapshot_size: u32,
    /// What becomes of the bytes of former volumes, and of those of a volume that is deleted.
    pub wipe: Wipe,
    /// A volume that is deleted takes its snapshots with it; else it is not deleted while it has some.
    pub deletes_snapshots: bool,
}

/// How the extents of a volume lie on the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Wherever there is room.
    Linear,
    /// In turns on so many disks.
    Striped(u32),
    /// On so many disks besides the first, the same on each (raid1).
    Mirrored(u32),
}

/// What becomes of the bytes of former volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wipe {
    /// Zeros are written over them.
    Zero,
    /// The disk is told to forget them; what it reads afterwards is its business.
    Discard,
    /// They stay.
    None,
}

impl Layout {
    /// How many disks a volume needs.
    pub(super) fn disks(self) -> u32 {
        match self {
            Self::Linear => 1,
            Self::Striped(stripes) => stripes,
            Self::Mirrored(mirrors) => mirrors + 1,
        }
    }

    /// The extents that a volume's length is a multiple of.
    pub(super) fn unit(self) -> u32 {
        match self {
            Self::Striped(stripes) => stripes,
            Self::Linear | Self::Mirrored(_) => 1,
        }
    }

    /// That of a volume which is no mirror, or none any more: an administrator may have taken its legs.
    pub(super) fn of_plain(self) -> Self {
        match self {
            Self::Mirrored(_) => Self::Linear,
            Self::Linear | Self::Striped(_) => self,
        }
    }

    /// The largest volume for which there is room, in extents, given the lengths of the free areas of each disk; of the
    /// extents `kept` in all are to stay free.
    ///
    /// A striped one is where LVM puts it. A mirrored one has each leg on one disk, with an extent of LVM's own notes.
    pub(super) fn largest(self, free: &[Vec<u64>], kept: u64) -> u64 {
        let mut disks: Vec<u64> = free.iter().map(|areas| areas.iter().sum()).collect();
        let usable = disks.iter().sum::<u64>().saturating_sub(kept);
        match self {
            Self::Linear => usable,
            Self::Striped(stripes) => {
                let stripes = stripes.max(1);
                let parts = usize::try_from(stripes).unwrap_or(usize::MAX);
                let rows = placement::stripe_rows(free, parts);
                let stripes = u64::from(stripes);
                rows.min(usable / stripes) * stripes
            }
            Self::Mirrored(mirrors) => {
                disks.sort_unstable_by(|one, other| other.cmp(one));
                let last = usize::try_from(mirrors).unwrap_or(usize::MAX);
                let smallest = disks.get(last).copied().unwrap_or_default();
                let copies = u64::from(mirrors) + 1;
                smallest
                    .min(usable / copies)
                    .saturating_sub(placement::NOTE)
            }
        }
    }

    /// The words that `lvcreate` wants for it.
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
    /// The exception store of a snapshot of a volume of so many bytes, in bytes.
    pub(super) fn store(&self, volume: u64) -> u64 {
        /// A chunk of the store, and the entries of the table that one holds (`dm-snap-persistent.c`).
        const CHUNK: u64 = 4096;
        const ENTRIES: u64 = CHUNK / 16;
        let part = u128::from(volume) * u128::from(self.snapshot_size) / 100;
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        // All chunks, a table for each so many of them, the head, and one that is never used.
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
        let free: Vec<Vec<u64>> = free.iter().map(|free| vec![*free]).collect();
        layout.largest(&free, kept)
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
