//! What a mounted file system tells of itself, and free blocks given back (`linux/fs.h`, `xfs_fs.h`, `linux/btrfs.h`).

use std::{io, os::fd::AsFd};

use super::ioctl::{Request, ioctl_value};

const FITRIM: Request = Request(
    "FITRIM",
    nix::request_code_readwrite!(b'X', 121, size_of::<[u64; 3]>()),
);
const XFS_IOC_FSGEOMETRY: Request = Request(
    "XFS_IOC_FSGEOMETRY",
    nix::request_code_read!(b'X', 126, size_of::<XfsGeometry>()),
);
const BTRFS_IOC_DEV_INFO: Request = Request(
    "BTRFS_IOC_DEV_INFO",
    nix::request_code_readwrite!(0x94, 30, size_of::<[u64; 512]>()),
);

/// The relevant part of `struct xfs_fsop_geom`.
#[repr(C)]
#[derive(Default)]
struct XfsGeometry {
    block_size: u32,
    before: [u32; 7],
    data_blocks: u64,
    between: [u64; 9],
    sick: u32,
    checked: u32,
    after: [u64; 17],
}

const _: () = assert!(size_of::<XfsGeometry>() == 256);

/// The size of a mounted xfs, in bytes; read from the file system, because its superblock on disk may be older.
pub(crate) fn xfs_size(directory: impl AsFd) -> io::Result<u64> {
    let mut geometry = XfsGeometry::default();
    // SAFETY: XFS_IOC_FSGEOMETRY writes one `struct xfs_fsop_geom`, whose size is asserted above.
    unsafe { ioctl_value(directory, XFS_IOC_FSGEOMETRY, &mut geometry) }?;
    Ok(geometry.data_blocks * u64::from(geometry.block_size))
}

/// What a mounted xfs has found to be corrupt: bits of `XFS_FSOP_GEOM_SICK_*`, of all its metadata but that of groups and
/// inodes.
pub(crate) fn xfs_sick(directory: impl AsFd) -> io::Result<u32> {
    let mut geometry = XfsGeometry::default();
    // SAFETY: XFS_IOC_FSGEOMETRY writes one `struct xfs_fsop_geom`, whose size is asserted above.
    unsafe { ioctl_value(directory, XFS_IOC_FSGEOMETRY, &mut geometry) }?;
    Ok(geometry.sick)
}

/// The size of a mounted btrfs on its first device, in bytes.
pub(crate) fn btrfs_size(directory: impl AsFd) -> io::Result<u64> {
    // `struct btrfs_ioctl_dev_info_args`: the device id first, the total bytes fifth.
    let mut arguments = [0_u64; 512];
    let [device, _, _, _, ..] = &mut arguments;
    *device = 1;
    // SAFETY: BTRFS_IOC_DEV_INFO reads and writes one structure of 4096 bytes.
    unsafe { ioctl_value(directory, BTRFS_IOC_DEV_INFO, &mut arguments) }?;
    let [_, _, _, _, bytes, ..] = arguments;
    Ok(bytes)
}

/// Discards the free blocks of the file system of an open directory (`FITRIM`).
pub(crate) fn trim(directory: impl AsFd) -> io::Result<()> {
    // `struct fstrim_range`: start, length, least length.
    let mut range = [0_u64, u64::MAX, 0];
    // SAFETY: the ioctl reads and writes a structure of this form and size.
    unsafe { ioctl_value(directory, FITRIM, &mut range) }
}
