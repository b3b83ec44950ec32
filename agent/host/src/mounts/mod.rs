//! Mounts: their table, their options, and paths that are resolved beneath a root.

pub(crate) mod fstab;
pub mod mount;
pub(crate) mod mount_options;
pub mod mount_table;
pub(crate) mod place;
