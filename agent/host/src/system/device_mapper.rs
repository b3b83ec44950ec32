//! Calls of device-mapper (linux/dm-ioctl.h).

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd},
};

use crate::trace;

/// Size of `struct dm_ioctl` of linux/dm-ioctl.h, in bytes; the arguments of a call follow it.
pub(crate) const DM_HEAD: usize = 312;

/// A call of device-mapper, which is a request of ioctl(2).
#[derive(Debug, Clone, Copy)]
pub(crate) struct MapperCall {
    name: &'static str,
    number: u8,
}

impl MapperCall {
    /// The call with this name and number in linux/dm-ioctl.h.
    pub(crate) const fn new(name: &'static str, number: u8) -> Self {
        Self { name, number }
    }
}

/// Makes a device-mapper call (linux/dm-ioctl.h) with a buffer that begins with the header, whose size field this
/// fills in.
pub(crate) fn device_mapper(
    control: impl AsFd,
    call: MapperCall,
    buffer: &mut [u8],
) -> io::Result<()> {
    const SIZE_AT: Range<usize> = 12..16;
    let size = u32::try_from(buffer.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    match buffer.get_mut(SIZE_AT) {
        Some(field) if buffer_holds_head(size) => field.copy_from_slice(&size.to_ne_bytes()),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    let _span = trace::ioctl(call.name);
    let request = nix::request_code_readwrite!(0xfd, call.number, DM_HEAD);
    let control = control.as_fd().as_raw_fd();
    // SAFETY: the kernel reads and writes no more than the size in the head, which is that of the buffer.
    let result = unsafe { libc::ioctl(control, request, buffer.as_mut_ptr()) };
    nix::errno::Errno::result(result)?;
    Ok(())
}

fn buffer_holds_head(size: u32) -> bool {
    usize::try_from(size).is_ok_and(|size| size >= DM_HEAD)
}
