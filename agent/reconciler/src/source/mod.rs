//! The sources of manifests.

pub(crate) mod directory;
pub(crate) mod file;
pub(crate) mod file_name;
pub(crate) mod kubernetes;
mod open_for_write;
pub(crate) mod trust;
pub(crate) mod watch;
