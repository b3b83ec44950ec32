//! Programs, loop devices, file systems and mounts of this machine.
//!
//! Everything here blocks, and is called where that is allowed; only [`exec`] waits asynchronously.
//! Nothing here remembers anything: what the kernel says is asked for each time.

mod access;
pub mod copy;
pub mod disk;
pub mod exec;
mod filesystem;
pub mod freeze;
pub mod holders;
pub mod loop_device;
pub mod mount;
mod mount_options;
pub mod mount_table;
mod system;

pub use access::Access;
pub use disk::Disk;
pub use filesystem::FileSystem;
pub use freeze::Frozen;
pub use loop_device::LoopDevice;
pub use mount::Outcome;
pub use mount_options::MountOptions;
pub use mount_table::{DeviceNumber, Mount, MountTable};
