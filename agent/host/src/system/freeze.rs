//! Freezing and thawing file systems (linux/fs.h).

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use libc::{c_int, c_uint};
use nix::{
    sched::CloneFlags,
    sys::{
        statfs::{BTRFS_SUPER_MAGIC, fstatfs},
        wait::{WaitPidFlag, waitpid},
    },
};

use super::ioctl::{Request, ioctl_number, ioctl_unseen};
use crate::trace;

const FIFREEZE: Request = Request(
    "FIFREEZE",
    nix::request_code_readwrite!(b'X', 119, size_of::<c_int>()),
);
const FITHAW: Request = Request(
    "FITHAW",
    nix::request_code_readwrite!(b'X', 120, size_of::<c_int>()),
);

/// Stack size for one system call.
const OUTLIVING_STACK: usize = 16 << 10;

/// Flushes and freezes the file system of an open directory (`FIFREEZE`).
pub(crate) fn freeze(directory: impl AsFd) -> io::Result<()> {
    ioctl_number(directory, FIFREEZE, 0).map(drop)
}

/// Thaws a file system (`FITHAW`); `EINVAL` when it is not frozen.
///
/// btrfs reads its superblock first, and if the caller is killed meanwhile, the file system becomes read-only until
/// it is unmounted: so the call is made by a process that does not die with this one.
pub(crate) fn thaw(directory: impl AsFd) -> io::Result<()> {
    let Request(name, number) = FITHAW;
    // Not within the call: the child process must not allocate memory.
    let _span = trace::ioctl(name);
    let thaw = || ioctl_unseen(&directory, number, 0).map(drop);
    if fstatfs(&directory)?.filesystem_type() == BTRFS_SUPER_MAGIC {
        return outliving(directory.as_fd(), &thaw);
    }
    thaw()
}

/// Makes one system call, which uses no file but `directory`, in a child process that survives if this one is killed.
/// If no such process can be started, the call is made in this one.
fn outliving(directory: BorrowedFd<'_>, call: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
    let mut outcome = Ok(());
    let mut stack = [0; OUTLIVING_STACK];
    let work = Box::new(|| {
        // Otherwise it would keep the lock of the state directory, and the next agent could not start.
        close_all_but(directory);
        outcome = call();
        0
    });
    // Like vfork(2): the memory is shared, and this thread waits until the child has ended.
    let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
    // SAFETY: the child takes no locks and allocates no memory, and ends before this frame is left: even if this
    // process is killed meanwhile, because the memory also belongs to the child.
    let started = unsafe { nix::sched::clone(work, &mut stack, flags, None) };
    let Ok(child) = started else {
        return call();
    };
    let _ = waitpid(child, Some(WaitPidFlag::__WALL));
    outcome
}

/// Closes every file of this process except one, if the kernel supports it (`close_range(2)`, Linux 5.9).
fn close_all_but(kept: BorrowedFd<'_>) {
    let kept = kept.as_raw_fd().unsigned_abs();
    let below = kept.checked_sub(1).map(|last| (0, last));
    for (first, last) in below.into_iter().chain([(kept + 1, c_uint::MAX)]) {
        // SAFETY: close_range(2) takes numbers only; the caller owns the table of files that it shares with nobody.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}
