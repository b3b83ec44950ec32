//! Where manifests come from.

pub(crate) mod directory;
mod file;
pub(crate) mod kubernetes;
pub(crate) mod trust;
pub(crate) mod watch;
mod open_for_write;
