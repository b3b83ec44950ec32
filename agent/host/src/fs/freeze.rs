//! Freezing a mounted file system while its image is copied.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use crate::system;
use crate::{Error, Kind, Result};

/// A frozen file system; it is thawed when this value is dropped, also on a panic.
///
/// If this process is killed, the file system stays frozen: [`thaw`] it at the next start.
#[derive(Debug)]
pub struct Frozen {
    // Kept open: thawing by path could reach another file system that was mounted over it meanwhile.
    directory: File,
    mount_point: PathBuf,
    held: bool,
}

impl Frozen {
    /// Flushes and freezes the file system mounted at `mount_point`.
    ///
    /// # Errors
    /// `Busy` when another program has frozen it; that program must thaw it.
    pub fn freeze(mount_point: &Path) -> Result<Self> {
        let directory = open(mount_point, "freeze")?;
        match system::freeze(&directory) {
            Ok(()) => Ok(Self {
                directory,
                mount_point: mount_point.to_owned(),
                held: true,
            }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(Error::new(
                Kind::Busy,
                format!(
                    "the file system at {} is already frozen; thaw it with `fsfreeze --unfreeze` if no other program needs it frozen",
                    mount_point.display()
                ),
            )),
            Err(error) => Err(failed("freeze", mount_point, error)),
        }
    }

    /// Thaws the file system, and reports errors.
    pub fn thaw(mut self) -> Result<()> {
        self.held = false;
        thaw_open(&self.directory, &self.mount_point).map(drop)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if self.held
            && let Err(error) = thaw_open(&self.directory, &self.mount_point)
        {
            tracing::error!(
                object = %self.mount_point.display(),
                error = error.chain(),
                "file system not thawed"
            );
        }
    }
}

/// The result of [`thaw`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thaw {
    /// It was frozen, and is thawed now.
    Thawed,
    /// It was not frozen.
    NotFrozen,
}

/// Thaws the file system mounted at `mount_point`. Idempotent.
pub fn thaw(mount_point: &Path) -> Result<Thaw> {
    thaw_open(&open(mount_point, "thaw")?, mount_point)
}

fn open(mount_point: &Path, what: &str) -> Result<File> {
    File::open(mount_point).map_err(|error| failed(what, mount_point, error))
}

fn thaw_open(directory: &File, mount_point: &Path) -> Result<Thaw> {
    match system::thaw(directory) {
        Ok(()) => Ok(Thaw::Thawed),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(Thaw::NotFrozen),
        Err(error) => Err(failed("thaw", mount_point, error)),
    }
}

fn failed(what: &str, mount_point: &Path, error: std::io::Error) -> Error {
    Error::io(
        format!(
            "could not {what} the file system at {}",
            mount_point.display()
        ),
        error,
    )
}
