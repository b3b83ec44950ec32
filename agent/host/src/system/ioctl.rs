//! Requests of ioctl(2), each with a span of its name.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use libc::{Ioctl, c_int, c_long};

use crate::trace;

/// A request of ioctl(2): its name, and its number.
#[derive(Clone, Copy)]
pub(super) struct Request(pub(super) &'static str, pub(super) Ioctl);

pub(super) fn checked(result: c_long) -> io::Result<c_long> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

pub(super) fn ioctl_number(fd: impl AsFd, request: Request, argument: c_long) -> io::Result<c_int> {
    let Request(name, number) = request;
    let _span = trace::ioctl(name);
    ioctl_unseen(fd, number, argument)
}

/// As [`ioctl_number`], without a span.
pub(super) fn ioctl_unseen(fd: impl AsFd, number: Ioctl, argument: c_long) -> io::Result<c_int> {
    // SAFETY: none of the requests passed here lets the kernel read or write this process's memory.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number, argument) };
    checked(c_long::from(result))?;
    Ok(result)
}

/// # Safety
/// `request` must read and write no more than one `T`, and any bytes that it writes must be a `T`.
pub(super) unsafe fn ioctl_value<T>(
    fd: impl AsFd,
    request: Request,
    value: &mut T,
) -> io::Result<()> {
    let Request(name, number) = request;
    let _span = trace::ioctl(name);
    let argument = std::ptr::from_mut(value);
    // SAFETY: the argument is one live `T`, and the caller guarantees the contract of the request.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number, argument) };
    checked(c_long::from(result)).map(drop)
}
