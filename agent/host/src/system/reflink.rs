//! Files that share blocks, and where the blocks of a file are (linux/fs.h, linux/fiemap.h).

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd},
};

use libc::{c_int, c_long};

use super::ioctl::{Request, ioctl_number, ioctl_value};

const FICLONE: Request = Request(
    "FICLONE",
    nix::request_code_write!(0x94, 9, size_of::<c_int>()),
);
// Its number carries the size of `struct fiemap` without extents.
const FS_IOC_FIEMAP: Request = Request(
    "FS_IOC_FIEMAP",
    nix::request_code_readwrite!(b'f', 11, size_of::<[u64; 4]>()),
);

/// The most extents that one call returns.
pub(crate) const EXTENTS: usize = 256;
/// Cached data is written first: the map does not show it otherwise.
pub(crate) const FIEMAP_FLAG_SYNC: u32 = 1;
/// The last extent of the file.
pub(crate) const FIEMAP_EXTENT_LAST: u32 = 1;
/// The file system has no extents, and these are its blocks, merged.
pub(crate) const FIEMAP_EXTENT_MERGED: u32 = 0x1000;
/// Another file has the same blocks.
pub(crate) const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

/// `struct fiemap_extent` of linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    also_reserved: [u32; 3],
}

/// `struct fiemap` of linux/fiemap.h, with its extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [FiemapExtent; EXTENTS],
}

/// Where a part of a file is on its device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The offset in the file.
    pub(crate) logical: u64,
    /// The offset on the device.
    pub(crate) physical: u64,
    pub(crate) length: u64,
    /// `FIEMAP_EXTENT_*`.
    pub(crate) flags: u32,
}

const _: () = assert!(size_of::<Fiemap>() == 32 + EXTENTS * 56);

/// Makes the whole of `target` share the blocks of `source` (`FICLONE`).
pub(crate) fn reflink(source: impl AsFd, target: impl AsFd) -> io::Result<()> {
    ioctl_number(target, FICLONE, c_long::from(source.as_fd().as_raw_fd())).map(drop)
}

/// Reads the first extents of a range of a file, at most [`EXTENTS`] (`FS_IOC_FIEMAP`); `flags` are `FIEMAP_FLAG_*`.
pub(crate) fn extents(file: impl AsFd, range: Range<u64>, flags: u32) -> io::Result<Vec<Extent>> {
    const NONE: FiemapExtent = FiemapExtent {
        logical: 0,
        physical: 0,
        length: 0,
        reserved: [0; 2],
        flags: 0,
        also_reserved: [0; 3],
    };
    let mut map = Fiemap {
        start: range.start,
        length: range.end.saturating_sub(range.start),
        flags,
        mapped: 0,
        count: u32::try_from(EXTENTS).map_err(io::Error::other)?,
        reserved: 0,
        extents: [NONE; EXTENTS],
    };
    // SAFETY: FS_IOC_FIEMAP reads and writes one `struct fiemap` and as many extents as its count says; the size of both
    // is asserted above.
    unsafe { ioctl_value(file, FS_IOC_FIEMAP, &mut map) }?;
    let mapped = usize::try_from(map.mapped).map_err(io::Error::other)?;
    let extents = map.extents.iter().take(mapped).map(|extent| Extent {
        logical: extent.logical,
        physical: extent.physical,
        length: extent.length,
        flags: extent.flags,
    });
    Ok(extents.collect())
}
