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
pub mod block_copy;
mod blocking;
pub mod copy;
pub mod cow_store;
pub mod descriptor;
pub mod device_mapper;
mod direct_io;
mod error;
pub mod exec;
pub mod fail;
mod filesystem;
pub mod flush;
pub mod format;
pub mod freeze;
mod fsync;
pub mod heap;
pub mod holders;
pub mod identity;
pub mod loop_device;
mod loop_table;
pub mod mount;
mod mount_options;
pub mod mount_table;
mod place;
pub mod quiesce;
mod resize_fs;
pub mod session;
pub mod statfs;
mod superblock;
mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod timed_mutex;
pub mod trace;
pub mod trim;
pub mod udev;
pub mod udev_cookies;
mod units;
mod write_watch;
mod zeros;

pub use access::Access;
pub use blocking::{blocking, blocking_at_once};
pub use direct_io::{DirectBuffer, open_direct};
pub use error::{Error, Kind, Result};
pub use filesystem::{FileSystem, is_untouched, probe};
pub use freeze::Frozen;
pub use fsync::{fdatasync, fsync};
pub use loop_device::LoopDevice;
pub use mount::Outcome;
pub use mount_options::{MountOptions, Restrictions};
pub use mount_table::{DeviceNumber, Mount, MountTable};
pub use place::PathBeneath;
pub use resize_fs::{Growth, grow, grow_unmounted, may_grow_mounted_ext4};
pub use statfs::Disk;
pub use superblock::probe as probe_bytes;
pub use superblock::{Probe, Superblock};
pub use timed_mutex::{Occupied, TimedMutex};
pub use units::Sectors;
pub use write_watch::WriteWatch;

#[cfg(test)]
mod tests;
