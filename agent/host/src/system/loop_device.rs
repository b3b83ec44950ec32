//! Loop devices (linux/loop.h).

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use libc::c_int;

use super::ioctl::{Request, ioctl_number, ioctl_value};

// These numbers carry no size.
const LOOP_CLR_FD: Request = Request("LOOP_CLR_FD", 0x4C01);
const LOOP_SET_STATUS64: Request = Request("LOOP_SET_STATUS64", 0x4C04);
const LOOP_GET_STATUS64: Request = Request("LOOP_GET_STATUS64", 0x4C05);
const LOOP_SET_CAPACITY: Request = Request("LOOP_SET_CAPACITY", 0x4C07);
const LOOP_CONFIGURE: Request = Request("LOOP_CONFIGURE", 0x4C0A);
const LOOP_CTL_GET_FREE: Request = Request("LOOP_CTL_GET_FREE", 0x4C82);

/// The loop device is read-only.
pub(crate) const LO_READ_ONLY: u32 = 1;
/// The loop device is detached with its last user.
pub(crate) const LO_AUTOCLEAR: u32 = 4;
/// The loop device bypasses the page cache of its backing file.
pub(crate) const LO_DIRECT_IO: u32 = 16;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoopStatus {
    /// `st_dev` of the backing file.
    pub(crate) device: u64,
    /// `st_ino` of the backing file.
    pub(crate) inode: u64,
    /// `st_rdev` of the backing file, when that is a block device.
    pub(crate) device_id: u64,
    /// The offset in the backing file at which the loop device begins.
    pub(crate) offset: u64,
    /// The number of bytes of the backing file that it exposes; 0 for all.
    pub(crate) size_limit: u64,
    /// The N of `/dev/loopN`.
    pub(crate) number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    /// `LO_*`.
    pub(crate) flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl LoopStatus {
    const ZERO: Self = Self {
        device: 0,
        inode: 0,
        device_id: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopStatus,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopStatus>() == 232 && size_of::<LoopConfig>() == 304);

/// The number of an unused loop device, which the kernel creates if necessary.
pub(crate) fn free_loop_device(control: impl AsFd) -> io::Result<c_int> {
    ioctl_number(control, LOOP_CTL_GET_FREE, 0)
}

/// Sets the backing file, flags and block size of an unused loop device in one step; `EBUSY` when another process was
/// first.
pub(crate) fn configure_loop_device(
    device: impl AsFd,
    backing: impl AsFd,
    flags: u32,
    block_size: u32,
) -> io::Result<()> {
    let fd = u32::try_from(backing.as_fd().as_raw_fd()).map_err(io::Error::other)?;
    let mut config = LoopConfig {
        fd,
        block_size,
        info: LoopStatus {
            flags,
            ..LoopStatus::ZERO
        },
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, whose size is asserted above.
    unsafe { ioctl_value(device, LOOP_CONFIGURE, &mut config) }
}

/// The status of a loop device; `ENXIO` when it is not in use.
pub(crate) fn loop_status(device: impl AsFd) -> io::Result<LoopStatus> {
    let mut status = LoopStatus::ZERO;
    // SAFETY: LOOP_GET_STATUS64 writes one `struct loop_info64`, whose size is asserted above.
    unsafe { ioctl_value(device, LOOP_GET_STATUS64, &mut status) }?;
    Ok(status)
}

/// Changes the flags of a loop device that can be changed: of those used here, only [`LO_AUTOCLEAR`].
pub(crate) fn set_loop_status(device: impl AsFd, mut status: LoopStatus) -> io::Result<()> {
    // SAFETY: LOOP_SET_STATUS64 reads one `struct loop_info64`, whose size is asserted above.
    unsafe { ioctl_value(device, LOOP_SET_STATUS64, &mut status) }
}

/// Detaches the backing file as soon as the device is not open any more.
pub(crate) fn clear_loop_device(device: impl AsFd) -> io::Result<()> {
    ioctl_number(device, LOOP_CLR_FD, 0).map(drop)
}

/// Resizes a loop device to the current size of its backing file.
pub(crate) fn refresh_loop_size(device: impl AsFd) -> io::Result<()> {
    ioctl_number(device, LOOP_SET_CAPACITY, 0).map(drop)
}
