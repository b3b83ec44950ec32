//! System calls without a safe wrapper in our dependencies: loop devices, reflinks, maps of extents, freezing, new-style
//! mounts, semaphores; and the allocator's settings.
//!
//! **Invariant:** the only file of this crate with `unsafe`.
#![expect(
    unsafe_code,
    reason = "ioctl(2), the mount calls that take no path and mallopt(3) have no safe wrapper"
)]

use std::{
    ffi::{CString, OsStr},
    fs::File,
    io::{self, IoSliceMut},
    ops::Range,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use libc::{Ioctl, c_int, c_long, c_uint};
use nix::{
    sched::CloneFlags,
    sys::{
        signal::{SigHandler, Signal, signal},
        socket::{ControlMessageOwned, MsgFlags, recvmsg},
        statfs::{BTRFS_SUPER_MAGIC, fstatfs},
        wait::{WaitPidFlag, waitpid},
    },
};

use crate::trace;

/// A request of ioctl(2): its name, and its number.
#[derive(Clone, Copy)]
struct Request(&'static str, Ioctl);

// linux/fs.h
const FICLONE: Request = Request(
    "FICLONE",
    nix::request_code_write!(0x94, 9, size_of::<c_int>()),
);
const FIFREEZE: Request = Request(
    "FIFREEZE",
    nix::request_code_readwrite!(b'X', 119, size_of::<c_int>()),
);
const FITHAW: Request = Request(
    "FITHAW",
    nix::request_code_readwrite!(b'X', 120, size_of::<c_int>()),
);
const FITRIM: Request = Request(
    "FITRIM",
    nix::request_code_readwrite!(b'X', 121, size_of::<[u64; 3]>()),
);
const BLKDISCARD: Request = Request("BLKDISCARD", nix::request_code_none!(0x12, 119));
const BLKZEROOUT: Request = Request("BLKZEROOUT", nix::request_code_none!(0x12, 127));
const BLKGETSIZE64: Request = Request(
    "BLKGETSIZE64",
    nix::request_code_read!(0x12, 114, size_of::<usize>()),
);
// Its number carries the size of `struct fiemap` without extents.
const FS_IOC_FIEMAP: Request = Request(
    "FS_IOC_FIEMAP",
    nix::request_code_readwrite!(b'f', 11, size_of::<[u64; 4]>()),
);

// linux/fs/xfs/libxfs/xfs_fs.h and linux/btrfs.h
const XFS_IOC_FSGEOMETRY: Request = Request(
    "XFS_IOC_FSGEOMETRY",
    nix::request_code_read!(b'X', 126, size_of::<XfsGeometry>()),
);
const BTRFS_IOC_DEV_INFO: Request = Request(
    "BTRFS_IOC_DEV_INFO",
    nix::request_code_readwrite!(0x94, 30, size_of::<[u64; 512]>()),
);

/// Size of `struct dm_ioctl` of linux/dm-ioctl.h, in bytes; the arguments of a call follow it.
pub(crate) const DM_HEAD: usize = 312;

// linux/loop.h; these numbers carry no size.
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

// linux/fiemap.h
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

// linux/mount.h
/// Stack size for one system call.
const OUTLIVING_STACK: usize = 16 << 10;
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
const _: () = assert!(size_of::<XfsGeometry>() == 256);
const _: () = assert!(size_of::<LoopStatus>() == 232 && size_of::<LoopConfig>() == 304);

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

/// Creates the semaphore with this key; `EEXIST` when it exists.
pub(crate) fn new_semaphore(key: i32) -> io::Result<c_int> {
    const FLAGS: c_int = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
    // SAFETY: semget(2) takes numbers only.
    nix::errno::Errno::result(unsafe { libc::semget(key, 1, FLAGS) }).map_err(io::Error::from)
}

/// Returns the value of a semaphore, after setting it if a value is given.
pub(crate) fn semaphore(id: c_int, value: Option<c_int>) -> io::Result<c_int> {
    let result = match value {
        // SAFETY: SETVAL takes a number.
        Some(value) => unsafe { libc::semctl(id, 0, libc::SETVAL, value) },
        // SAFETY: GETVAL takes nothing.
        None => unsafe { libc::semctl(id, 0, libc::GETVAL) },
    };
    nix::errno::Errno::result(result).map_err(io::Error::from)
}

/// Number of processes that wait until a semaphore is zero.
pub(crate) fn waiting_for_zero(id: c_int) -> io::Result<c_int> {
    // SAFETY: GETZCNT takes nothing.
    let result = unsafe { libc::semctl(id, 0, libc::GETZCNT) };
    nix::errno::Errno::result(result).map_err(io::Error::from)
}

/// The process that changed a semaphore last; zero if it belongs to another process namespace.
pub(crate) fn last_user(id: c_int) -> io::Result<c_int> {
    // SAFETY: GETPID takes nothing.
    let result = unsafe { libc::semctl(id, 0, libc::GETPID) };
    nix::errno::Errno::result(result).map_err(io::Error::from)
}

/// Removes a semaphore.
pub(crate) fn remove_semaphore(id: c_int) -> io::Result<()> {
    // SAFETY: IPC_RMID takes nothing.
    let result = unsafe { libc::semctl(id, 0, libc::IPC_RMID) };
    nix::errno::Errno::result(result)?;
    Ok(())
}

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

/// Discards the free blocks of the file system of an open directory (`FITRIM`).
pub(crate) fn trim(directory: impl AsFd) -> io::Result<()> {
    // `struct fstrim_range`: start, length, least length.
    let mut range = [0_u64, u64::MAX, 0];
    // SAFETY: the ioctl reads and writes a structure of this form and size.
    unsafe { ioctl_value(directory, FITRIM, &mut range) }
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

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(OsStr::as_bytes(path.as_os_str()))?)
}

fn checked(result: c_long) -> io::Result<c_long> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn ioctl_number(fd: impl AsFd, request: Request, argument: c_long) -> io::Result<c_int> {
    let Request(name, number) = request;
    let _span = trace::ioctl(name);
    ioctl_unseen(fd, number, argument)
}

/// As [`ioctl_number`], without a span.
fn ioctl_unseen(fd: impl AsFd, number: Ioctl, argument: c_long) -> io::Result<c_int> {
    // SAFETY: none of the requests passed here lets the kernel read or write this process's memory.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number, argument) };
    checked(c_long::from(result))?;
    Ok(result)
}

/// # Safety
/// `request` must read and write no more than one `T`, and any bytes that it writes must be a `T`.
unsafe fn ioctl_value<T>(fd: impl AsFd, request: Request, value: &mut T) -> io::Result<()> {
    let Request(name, number) = request;
    let _span = trace::ioctl(name);
    let argument = std::ptr::from_mut(value);
    // SAFETY: the argument is one live `T`, and the caller guarantees the contract of the request.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number, argument) };
    checked(c_long::from(result)).map(drop)
}
