//! System calls without a safe wrapper in our dependencies: loop devices, reflinks, maps of extents, freezing, new-style
//! mounts, semaphores; and the memory of this process.
//!
//! **Invariant:** the only folder of this crate with `unsafe`.
#![expect(
    unsafe_code,
    reason = "ioctl(2), the mount calls that take no path and mallopt(3) have no safe wrapper"
)]

mod block_device;
mod device_mapper;
mod file_system;
mod freeze;
mod ioctl;
mod loop_device;
mod mount;
mod process;
mod reflink;
mod semaphore;

pub(crate) use block_device::{device_size, discard_range, zero_range};
pub(crate) use device_mapper::{DM_HEAD, MapperCall, device_mapper};
pub(crate) use file_system::{btrfs_size, trim, xfs_sick, xfs_size};
pub(crate) use freeze::{freeze, thaw};
pub(crate) use loop_device::{
    LO_AUTOCLEAR, LO_DIRECT_IO, LO_READ_ONLY, LoopStatus, clear_loop_device, configure_loop_device,
    free_loop_device, loop_status, refresh_loop_size, set_loop_status,
};
pub(crate) use mount::{MOUNT_ATTR_RDONLY, clone_mount, mount_aside, move_mount, restrict_mount};
pub(crate) use process::{
    ignore, read_entries, receive_files, release_program, share_heap, trim_heap,
};
pub(crate) use reflink::{
    EXTENTS, Extent, FIEMAP_EXTENT_LAST, FIEMAP_EXTENT_MERGED, FIEMAP_EXTENT_SHARED,
    FIEMAP_FLAG_SYNC, extents, reflink,
};
pub(crate) use semaphore::{
    last_user, new_semaphore, remove_semaphore, semaphore, waiting_for_zero,
};
