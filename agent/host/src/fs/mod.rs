//! File systems: what is on a device, and making, checking, growing, flushing and freezing it.

pub mod copy;
pub(crate) mod exclusive;
pub(crate) mod filesystem;
pub mod flush;
pub mod format;
pub mod freeze;
pub mod fs_errors;
pub(crate) mod fsync;
pub(crate) mod resize_fs;
pub mod statfs;
pub(crate) mod superblock;
pub mod trim;
