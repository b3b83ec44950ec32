//! This process: signals, the files that it is sent, directory entries, its memory.

use std::{
    fs::File,
    io::{self, IoSliceMut},
    os::fd::{AsFd, AsRawFd, FromRawFd},
    ptr, slice,
};

use libc::{c_int, c_void};
use nix::sys::{
    signal::{SigHandler, Signal, signal},
    socket::{ControlMessageOwned, MsgFlags, recvmsg},
};

use super::ioctl::checked;

/// Makes this process ignore a signal.
pub(crate) fn ignore(number: Signal) {
    // SAFETY: no handler of ours runs.
    let _ = unsafe { signal(number, SigHandler::SigIgn) };
}

/// Receives the files that came with the next byte on a unix socket; none at its end.
pub(crate) fn receive_files(socket: impl AsFd, most: usize) -> io::Result<Option<Vec<File>>> {
    let mut space = vec![0; most * size_of::<c_int>() + 64];
    let mut byte = [0];
    let mut body = [IoSliceMut::new(&mut byte)];
    let socket = socket.as_fd().as_raw_fd();
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket, &mut body, Some(&mut space), flags)?;
    if message.bytes == 0 {
        return Ok(None);
    }
    // Some files were lost: the descriptor table of this process is full.
    if message.flags.contains(MsgFlags::MSG_CTRUNC) {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    let mut files = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            // SAFETY: the kernel has created these descriptors for this call, and nothing else uses them.
            let new = |number| unsafe { File::from_raw_fd(number) };
            files.extend(numbers.into_iter().map(new));
        }
    }
    Ok(Some(files))
}

/// Reads entries of an open directory (`struct linux_dirent64`) into a buffer; returns the number of bytes, zero at
/// its end.
pub(crate) fn read_entries(directory: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let directory = directory.as_fd().as_raw_fd();
    // SAFETY: getdents64(2) writes at most as many bytes as the given buffer length.
    let result = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            directory,
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    };
    usize::try_from(checked(result)?).map_err(io::Error::other)
}

/// Limits the allocator to one arena for all threads (`M_ARENA_MAX`), if it is glibc's.
pub(crate) fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes two numbers, and changes only the allocator's own settings, under its lock.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Returns the free pages of the heap to the kernel, if the allocator is glibc's.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it returns pages without allocations, under the allocator's lock.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Unmaps the pages of the program that cannot be written to: its code and its constants.
pub(crate) fn release_program() {
    // SAFETY: `release_object` keeps nothing of what it is given.
    unsafe { libc::dl_iterate_phdr(Some(release_object), ptr::null_mut()) };
}

/// Does that for the first object that the loader tells of, which is the program, and stops.
unsafe extern "C" fn release_object(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the loader gives a valid object, with as many headers as it says.
    let (base, headers) = unsafe {
        let count = usize::from((*object).dlpi_phnum);
        let headers = slice::from_raw_parts((*object).dlpi_phdr, count);
        ((*object).dlpi_addr, headers)
    };
    for header in headers {
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
            release_segment(base + header.p_vaddr, header.p_memsz);
        }
    }
    1
}

/// Unmaps the pages of a read-only segment.
fn release_segment(address: u64, length: u64) {
    // SAFETY: it reads a setting.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let Ok(page) = u64::try_from(page) else {
        return;
    };
    let within = address % page;
    let whole = usize::try_from(length + within);
    let (Ok(start), Ok(length)) = (usize::try_from(address - within), whole) else {
        return;
    };
    let start = ptr::with_exposed_provenance_mut::<c_void>(start);
    // SAFETY: a private mapping of a file that cannot be written to: what is read there next is the same.
    let _ = unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
}
