//! LVM's lock files.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use crate::{Error, Kind, Result};

/// The directory of LVM's lock files, once it is known.
static LOCKS: OnceLock<PathBuf> = OnceLock::new();

/// Notes the directory that LVM's configuration names.
pub(crate) fn found(directory: PathBuf) {
    let _ = LOCKS.set(directory);
}

/// The directory of LVM's lock files on this host.
///
/// # Errors
/// [`Kind::Bug`] before [`crate::preflight::check`] has succeeded.
pub fn directory() -> Result<&'static Path> {
    let known = LOCKS.get().map(PathBuf::as_path);
    known.ok_or_else(|| {
        Error::new(
            Kind::Bug,
            "the directory of LVM's locks was not read from its configuration",
        )
    })
}
