//! New-style mounts (linux/mount.h).

use std::{
    ffi::{CString, OsStr},
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use libc::{c_int, c_long, c_uint};

use super::ioctl::checked;

const OPEN_TREE_CLONE: c_uint = 1;
/// `MOVE_MOUNT_F_EMPTY_PATH`, `MOVE_MOUNT_T_EMPTY_PATH`.
const MOVE_MOUNT_EMPTY_PATHS: c_uint = 0x04 | 0x40;
pub(crate) const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_ATIME: u64 = 0x70;
/// `nosuid`, `nodev`, `noexec`.
const MOUNT_ATTR_HARMLESS: c_uint = 2 | 4 | 8;
const FSOPEN_CLOEXEC: c_uint = 1;
const FSMOUNT_CLOEXEC: c_uint = 1;
const FSCONFIG_SET_FLAG: c_uint = 0;
const FSCONFIG_SET_STRING: c_uint = 1;
const FSCONFIG_CMD_CREATE: c_uint = 6;

/// A detached copy of the mount at `source` (or of `source` itself, if it is a file).
pub(crate) fn clone_mount(source: &Path) -> io::Result<OwnedFd> {
    let source = c_path(source)?;
    let flags = OPEN_TREE_CLONE | c_uint::try_from(libc::O_CLOEXEC).map_err(io::Error::other)?;
    // SAFETY: open_tree(2) reads a path that ends in NUL and lives across the call.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, source.as_ptr(), flags) };
    new_descriptor(fd)
}

/// Mounts a block device without attaching it to the mount tree; it is unmounted when its last descriptor is closed.
///
/// `options` are those of the file system: `name` or `name=value`.
pub(crate) fn mount_aside(device: &Path, fs_type: &str, options: &[String]) -> io::Result<OwnedFd> {
    let fs_type = CString::new(fs_type)?;
    // SAFETY: fsopen(2) reads a name that ends in NUL and lives across the call.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, fs_type.as_ptr(), FSOPEN_CLOEXEC) };
    let context = new_descriptor(context)?;
    let configure = |command: c_uint, key: Option<&str>, value: Option<&CString>| {
        let key = key.map(CString::new).transpose()?;
        let pointer = |text: Option<&CString>| text.map_or(std::ptr::null(), |text| text.as_ptr());
        // SAFETY: fsconfig(2) reads texts that end in NUL and live across the call, or none.
        let result = unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                context.as_raw_fd(),
                command,
                pointer(key.as_ref()),
                pointer(value),
                0,
            )
        };
        checked(result).map(drop)
    };
    configure(FSCONFIG_SET_STRING, Some("source"), Some(&c_path(device)?))?;
    for option in options {
        match option.split_once('=') {
            None => configure(FSCONFIG_SET_FLAG, Some(option), None)?,
            Some((name, value)) => {
                configure(FSCONFIG_SET_STRING, Some(name), Some(&CString::new(value)?))?;
            }
        }
    }
    configure(FSCONFIG_CMD_CREATE, None, None)?;
    // SAFETY: fsmount(2) takes numbers only.
    let mount = unsafe {
        libc::syscall(
            libc::SYS_fsmount,
            context.as_raw_fd(),
            FSMOUNT_CLOEXEC,
            MOUNT_ATTR_HARMLESS,
        )
    };
    new_descriptor(mount)
}

fn new_descriptor(result: c_long) -> io::Result<OwnedFd> {
    let fd = c_int::try_from(checked(result)?).map_err(io::Error::other)?;
    // SAFETY: the call has created this descriptor, and nothing else uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Restricts a mount by `MOUNT_ATTR_*`; its file system is unchanged.
pub(crate) fn restrict_mount(mount: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    // The access-time mode is one value of several, so the old one must be cleared.
    let cleared = match attributes & MOUNT_ATTR_ATIME {
        0 => 0,
        _ => MOUNT_ATTR_ATIME,
    };
    // `struct mount_attr`: flags to set, flags to clear, propagation, user namespace.
    let attributes: [u64; 4] = [attributes, cleared, 0, 0];
    // SAFETY: mount_setattr(2) reads an empty path and the given number of bytes of attributes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    checked(result).map(drop)
}

/// Attaches a mount that [`clone_mount`] created; it appears atomically at the opened `target`, even if that was
/// moved.
pub(crate) fn move_mount(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: move_mount(2) reads two empty paths.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            MOVE_MOUNT_EMPTY_PATHS,
        )
    };
    checked(result).map(drop)
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(OsStr::as_bytes(path.as_os_str()))?)
}
