//! Programs, loop devices, file systems and mounts of this host.
//!
//! Everything here blocks, and is called where that is allowed; only [`exec`] and [`session`] are asynchronous.
//! Nothing here keeps state: the kernel is queried each time.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use drumlin_host::{Access, FileSystem, MountOptions, format, loop_device, mount};
//!
//! # async fn example() -> drumlin_host::Result<()> {
//! let image = Path::new("/srv/a.img");
//! format::make(image, FileSystem::Ext4, format::FormatTarget::Untouched).await?;
//! let device = loop_device::attach(image, Access::ReadWrite)?;
//! let options = MountOptions::parse(FileSystem::Ext4, &["noatime"])?;
//! // A repeated call finds the mount, and says so.
//! let outcome = mount::mount_device(&device.path, Path::new("/mnt/a"), FileSystem::Ext4, &options)?;
//! println!("{outcome:?}");
//! # Ok(())
//! # }
//! ```

#![cfg_attr(
    any(test, feature = "testing"),
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "tests fail by panicking"
    )
)]

mod access;
mod block;
mod blocking;
pub mod changed;
mod error;
pub mod fail;
mod fs;
mod mounts;
mod poison;
mod process;
pub mod quiesce;
mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod timed_mutex;
pub mod trace;
mod units;

pub use access::Access;
pub use block::{
    block_copy, cow_store, crypt_mapping, device_mapper, io_limits, loop_device, luks, overwritten,
    read_probe, udev, udev_cookies,
};
use block::{direct_io, loop_table, write_watch, zeros};
pub use blocking::{blocking, blocking_at_once};
pub use direct_io::{DirectBuffer, open_direct};
pub use error::{Error, Kind, Result};
pub use exclusive::exclusive_bytes;
pub use filesystem::{FileSystem, is_untouched, probe};
pub use freeze::Frozen;
pub use fs::{copy, flush, format, freeze, fs_errors, statfs, trim};
use fs::{exclusive, filesystem, fsync, resize_fs, superblock};
pub use fstab::{Fstab, FstabEntry};
pub use fsync::{fdatasync, fsync};
pub use loop_device::LoopDevice;
pub use mount::Outcome;
pub use mount_options::{MountOptions, Restrictions};
pub use mount_table::{DeviceNumber, Mount, MountTable};
use mounts::{fstab, mount_options, place};
pub use mounts::{mount, mount_table};
pub use place::PathBeneath;
pub use poison::lock;
pub use process::{descriptor, exec, file_locks, heap, holders, identity, isolated, session};
pub use resize_fs::{Growth, grow, grow_unmounted, may_grow_mounted_ext4};
pub use statfs::Disk;
pub use superblock::probe as probe_bytes;
pub use superblock::{Probe, Superblock};
pub use timed_mutex::{Occupied, TimedMutex};
pub use units::Sectors;
pub use write_watch::WriteWatch;

#[cfg(test)]
mod tests;
