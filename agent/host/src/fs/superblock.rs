//! Detection of file systems and other contents by the first and last bytes of a device or image.
//!
//! **Invariant:** nothing here does I/O.

use crate::{FileSystem, zeros::is_zero};

/// Bytes read from the beginning.
pub(crate) const HEAD: usize = 1 << 20;
/// Bytes read from the end.
pub(crate) const TAIL: usize = 1 << 20;
/// The part of the beginning that contains the signatures of the supported file systems.
pub(crate) const SHORT_HEAD: usize = 128 << 10;

/// Data without a known signature.
pub(crate) const UNKNOWN: &str = "unknown data";
/// Left by an interrupted mkfs.xfs.
pub(crate) const UNFINISHED_XFS: &str = "unfinished xfs";
/// Left by an interrupted mkfs.btrfs.
pub(crate) const UNFINISHED_BTRFS: &str = "unfinished btrfs";

/// The contents of a device or image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// The first and the last mebibyte contain only zeros.
    Blank,
    /// A supported file system.
    Known(Superblock),
    /// Other contents, by name; `unknown data` without a known signature.
    Foreign(&'static str),
}

/// The superblock of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The type of the file system.
    pub kind: FileSystem,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Its UUID; a copy has its source's.
    pub uuid: uuid::Uuid,
    /// True if it was last unmounted or frozen; unknown for xfs.
    pub is_clean: Option<bool>,
}

/// Detects a supported file system at the beginning of a device.
fn known(head: &[u8]) -> Option<Superblock> {
    // A signature at the very beginning takes precedence: the others leave that part unchanged, so theirs may be
    // older.
    xfs(head).or_else(|| ext4(head)).or_else(|| btrfs(head))
}

/// What the first bytes prove: a container, or a supported file system.
pub(crate) fn early(head: &[u8]) -> Option<Probe> {
    container(head)
        .map(Probe::Foreign)
        .or_else(|| known(head).map(Probe::Known))
}

/// Detects contents from both ends of a device; each has the required length, or is the whole device.
pub fn probe(head: &[u8], tail: &[u8]) -> Probe {
    if let Some(found) = early(head) {
        return found;
    }
    if let Some(name) = foreign(head).or_else(|| foreign_tail(tail)) {
        return Probe::Foreign(name);
    }
    if is_zero(head) && is_zero(tail) {
        Probe::Blank
    } else {
        Probe::Foreign(UNKNOWN)
    }
}

fn bytes<const N: usize>(from: &[u8], offset: usize) -> Option<[u8; N]> {
    from.get(offset..)?.first_chunk().copied()
}

fn le32(from: &[u8], offset: usize) -> Option<u32> {
    bytes(from, offset).map(u32::from_le_bytes)
}

fn le64(from: &[u8], offset: usize) -> Option<u64> {
    bytes(from, offset).map(u64::from_le_bytes)
}

fn uuid(from: &[u8], offset: usize) -> Option<uuid::Uuid> {
    bytes(from, offset).map(uuid::Uuid::from_bytes)
}

/// `linux/fs/xfs/libxfs/xfs_format.h`, `struct xfs_dsb`: big-endian, at the very beginning.
fn xfs(head: &[u8]) -> Option<Superblock> {
    const IN_PROGRESS: usize = 126;
    if !head.starts_with(b"XFSB") {
        return None;
    }
    let block_size = u64::from(bytes(head, 4).map(u32::from_be_bytes)?);
    let blocks = bytes(head, 8).map(u64::from_be_bytes)?;
    // Set by mkfs.xfs until it has completed everything else.
    if *head.get(IN_PROGRESS)? != 0 || !(512..=65_536).contains(&block_size) {
        return None;
    }
    Some(Superblock {
        kind: FileSystem::Xfs,
        size_bytes: blocks.checked_mul(block_size)?,
        uuid: uuid(head, 32)?,
        is_clean: None,
    })
}

/// `linux/fs/ext4/ext4.h`, `struct ext4_super_block`: at byte 1024.
fn ext4(head: &[u8]) -> Option<Superblock> {
    const EXTENTS: u32 = 0x40;
    const WIDE: u32 = 0x80;
    const RECOVER: u32 = 0x4;
    const VALID: u16 = 1;
    let block = ext_superblock(head)?;
    let incompatible = le32(block, 0x60)?;
    // Without extents it is ext2 or ext3.
    if incompatible & EXTENTS == 0 {
        return None;
    }
    let block_size = 1024_u64.checked_shl(le32(block, 0x18)?)?;
    let high = if incompatible & WIDE == 0 {
        0
    } else {
        le32(block, 0x150)?
    };
    let blocks = u64::from(le32(block, 0x4)?) | (u64::from(high) << 32);
    let state = bytes(block, 0x3a).map(u16::from_le_bytes)?;
    Some(Superblock {
        kind: FileSystem::Ext4,
        size_bytes: blocks.checked_mul(block_size)?,
        uuid: uuid(block, 0x68)?,
        is_clean: Some(state & VALID != 0 && incompatible & RECOVER == 0),
    })
}

/// The superblock of ext2, ext3 or ext4.
fn ext_superblock(head: &[u8]) -> Option<&[u8]> {
    let block = head.get(1024..2048)?;
    let is_ext = bytes(block, 0x38) == Some([0x53, 0xef])
        && le32(block, 0x18)? <= 6
        && le32(block, 0)? != 0
        && le32(block, 0x4)? != 0;
    is_ext.then_some(block)
}

/// `linux/include/uapi/linux/btrfs_tree.h`, `struct btrfs_super_block`: at 64 KiB.
fn btrfs(head: &[u8]) -> Option<Superblock> {
    let block = head.get(65_536..65_536 + 4096)?;
    if bytes(block, 0x40) != Some(*b"_BHRfS_M") {
        return None;
    }
    Some(Superblock {
        kind: FileSystem::Btrfs,
        // Part of the device item: the size on this device.
        size_bytes: le64(block, 0xc9 + 8)?,
        uuid: uuid(block, 0x20)?,
        // The log is replayed at the next mount.
        is_clean: Some(le64(block, 0x60)? == 0),
    })
}

/// Signatures of containers and partition tables: a file system signature behind one is not reliable.
const CONTAINERS: &[(&str, usize, &[u8])] = &[
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("BitLocker", 3, b"-FVE-FS-"),
    ("LVM physical volume", 0, b"LABELONE"),
    ("LVM physical volume", 512, b"LABELONE"),
    ("LVM physical volume", 1024, b"LABELONE"),
    ("LVM physical volume", 1536, b"LABELONE"),
    ("GPT partition table", 512, b"EFI PART"),
    ("GPT partition table", 4096, b"EFI PART"),
    (
        "bcache",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    ("md raid member", 0, b"\xfc\x4e\x2b\xa9"),
    ("md raid member", 4096, b"\xfc\x4e\x2b\xa9"),
    ("stratis", 512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("VDO", 0, b"dmvdo001"),
    ("Ceph BlueStore", 0, b"bluestore block device"),
];

/// Signatures of other file systems.
const FOREIGN: &[(&str, usize, &[u8])] = &[
    ("squashfs", 0, b"hsqs"),
    ("exfat", 3, b"EXFAT   "),
    ("ntfs", 3, b"NTFS    "),
    ("vfat", 82, b"FAT32   "),
    ("vfat", 54, b"FAT16   "),
    ("vfat", 54, b"FAT12   "),
    ("f2fs", 1024, b"\x10\x20\xf5\xf2"),
    ("erofs", 1024, b"\xe2\xe1\xf5\xe0"),
    ("nilfs2", 1024 + 6, b"\x34\x34"),
    ("iso9660", 32_769, b"CD001"),
    ("udf", 32_769, b"BEA01"),
    ("jfs", 32_768, b"JFS1"),
    ("reiserfs", 65_536 + 52, b"ReIsEr"),
    ("gfs2", 65_536, b"\x01\x16\x19\x70"),
    ("ocfs2", 4096, b"OCFSV2"),
    (
        "bcachefs",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    ("swap", 4096 - 10, b"SWAPSPACE2"),
    ("swap", 8192 - 10, b"SWAPSPACE2"),
    ("swap", 16_384 - 10, b"SWAPSPACE2"),
    ("swap", 65_536 - 10, b"SWAPSPACE2"),
    (UNFINISHED_XFS, 0, b"XFSB"),
    (UNFINISHED_BTRFS, 65_536 + 0x40, b"!BHRfS_M"),
    ("btrfs", 65_536 + 0x40, b"_BHRfS_M"),
];

fn matching(head: &[u8], list: &[(&'static str, usize, &[u8])]) -> Option<&'static str> {
    list.iter()
        .find(|(_, offset, magic)| {
            head.get(*offset..)
                .is_some_and(|rest| rest.starts_with(magic))
        })
        .map(|(name, ..)| *name)
}

fn container(head: &[u8]) -> Option<&'static str> {
    matching(head, CONTAINERS)
}

fn foreign(head: &[u8]) -> Option<&'static str> {
    const ZFS: [u8; 8] = 0x00ba_b10c_u64.to_le_bytes();
    if let Some(block) = ext_superblock(head) {
        let has_journal = le32(block, 0x5c)? & 0x4 != 0;
        return Some(if has_journal { "ext3" } else { "ext2" });
    }
    if let Some(name) = matching(head, FOREIGN) {
        return Some(name);
    }
    // The label is 256 KiB long, its second half an array of uberblocks.
    let mut uberblocks = head.get(128 << 10..256 << 10)?.chunks(1024);
    if uberblocks.any(|block| block.starts_with(&ZFS)) {
        return Some("zfs");
    }
    is_partitioned(head).then_some("MBR partition table")
}

/// A boot sector with at least one used entry, and only plausible entries.
fn is_partitioned(head: &[u8]) -> bool {
    let Some(entries) = head.get(446..510) else {
        return false;
    };
    let mut entries = entries.chunks(16);
    bytes(head, 510) == Some([0x55, 0xaa])
        && entries
            .clone()
            .all(|entry| matches!(entry.first(), Some(0 | 0x80)))
        && entries.any(|entry| entry.get(4).is_some_and(|kind| *kind != 0))
}

/// Formats with their signature at the end of the device.
fn foreign_tail(tail: &[u8]) -> Option<&'static str> {
    let from_end = |distance: usize| tail.get(tail.len().checked_sub(distance)?..);
    let begins = |distance: usize, magic: &[u8]| {
        from_end(distance).is_some_and(|rest| rest.starts_with(magic))
    };
    if begins(512, b"EFI PART") || begins(4096, b"EFI PART") {
        return Some("GPT partition table");
    }
    // Version 1.0 is 8 KiB before the end or a little more, version 0.90 in the last whole 64 KiB.
    let raid = [b"\xfc\x4e\x2b\xa9", b"\xa9\x2b\x4e\xfc"];
    let mut ends = tail.rchunks(4096).take(32);
    if ends.any(|block| raid.iter().any(|magic| block.starts_with(*magic))) {
        return Some("md raid member");
    }
    None
}
