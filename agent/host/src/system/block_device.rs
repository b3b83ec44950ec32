//! Block devices: size, zeros, discards (linux/fs.h).

use std::{io, os::fd::AsFd};

use super::ioctl::{Request, ioctl_value};

const BLKDISCARD: Request = Request("BLKDISCARD", nix::request_code_none!(0x12, 119));
const BLKZEROOUT: Request = Request("BLKZEROOUT", nix::request_code_none!(0x12, 127));
const BLKGETSIZE64: Request = Request(
    "BLKGETSIZE64",
    nix::request_code_read!(0x12, 114, size_of::<usize>()),
);

/// Makes a range of a block device read as zeros (`BLKZEROOUT`): start and length in bytes, multiples of 512.
pub(crate) fn zero_range(device: impl AsFd, start: u64, length: u64) -> io::Result<()> {
    // SAFETY: BLKZEROOUT reads two u64 from its argument.
    unsafe { ioctl_value(device, BLKZEROOUT, &mut [start, length]) }.map(drop)
}

/// Discards a range of a block device (`BLKDISCARD`): start and length in bytes, multiples of 512.
pub(crate) fn discard_range(device: impl AsFd, start: u64, length: u64) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two u64 from its argument.
    unsafe { ioctl_value(device, BLKDISCARD, &mut [start, length]) }.map(drop)
}

/// The size of a block device, in bytes.
pub(crate) fn device_size(device: impl AsFd) -> io::Result<u64> {
    let mut bytes = 0_u64;
    // SAFETY: BLKGETSIZE64 writes one u64 to its argument.
    unsafe { ioctl_value(device, BLKGETSIZE64, &mut bytes) }?;
    Ok(bytes)
}
