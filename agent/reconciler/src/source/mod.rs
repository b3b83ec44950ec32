//! Where manifests come from.

pub(crate) mod directory;
mod file;
mod lease;
pub(crate) mod watch;
