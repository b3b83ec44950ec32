//! Quiesce targets: what is frozen or suspended to quiesce the writers of an image.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Kind, Result,
    device_mapper::{DeviceMapper, SuspendMode},
    fail, system,
};

/// A target whose writers can be quiesced.
#[derive(Debug)]
pub enum QuiesceTarget {
    /// A device-mapper device, including the file system mounted from it.
    Device {
        /// Its UUID.
        uuid: String,
    },
    /// A mounted file system, by a directory in it.
    FileSystem(File),
}

/// The form in which a target is sent to another process; its files are sent separately.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireTarget {
    Device { uuid: String },
    FileSystem { file: usize },
}

impl QuiesceTarget {
    /// Converts it for a process that gets `files`.
    pub(super) fn tell<'a>(&'a self, files: &mut Vec<BorrowedFd<'a>>) -> WireTarget {
        match self {
            Self::Device { uuid } => WireTarget::Device { uuid: uuid.clone() },
            Self::FileSystem(directory) => {
                files.push(directory.as_fd());
                WireTarget::FileSystem {
                    file: files.len() - 1,
                }
            }
        }
    }

    /// The target that another process sent with `files`; each file is used once.
    pub(super) fn of(told: WireTarget, files: &mut [Option<File>]) -> Option<Self> {
        match told {
            WireTarget::Device { uuid } => Some(Self::Device { uuid }),
            WireTarget::FileSystem { file } => files.get_mut(file)?.take().map(Self::FileSystem),
        }
    }

    /// Returns true if it needs device-mapper.
    pub(super) fn is_device(&self) -> bool {
        matches!(self, Self::Device { .. })
    }

    /// Freezes and thaws the file system once, so that the next freeze is shorter: a freeze writes out a journal that
    /// a sync leaves, and waits three times for all processors, which another freeze within some milliseconds need
    /// not do.
    pub(super) fn settle(&self) -> Result<()> {
        let Self::FileSystem(directory) = self else {
            return Ok(());
        };
        match system::freeze(directory) {
            Ok(()) => {
                fail::point("quiesce.settling");
                self.release(None)
            }
            // Another program has frozen it, and will thaw it; or it cannot be frozen.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EOPNOTSUPP)) => {
                Ok(())
            }
            Err(error) => Err(could_not_settle(error)),
        }
    }

    /// Quiesces writers, after flushing their writes to the device.
    pub(super) fn hold(&self, mapper: Option<&DeviceMapper>) -> Result<()> {
        match self {
            Self::Device { uuid } => super::plan::open(mapper)?.suspend(uuid, SuspendMode::Clean),
            Self::FileSystem(directory) => match system::freeze(directory) {
                Ok(()) => Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(Error::new(
                    Kind::Busy,
                    "its file system is already frozen; thaw it with `fsfreeze --unfreeze` if no other program needs it frozen",
                )),
                Err(error) => Err(Error::io("could not freeze its file system", error)),
            },
        }
    }

    /// Resumes writers; does nothing if they are not quiesced.
    pub(super) fn release(&self, mapper: Option<&DeviceMapper>) -> Result<()> {
        match self {
            Self::Device { uuid } => super::plan::open(mapper)?.resume(uuid),
            Self::FileSystem(directory) => match system::thaw(directory) {
                Err(error) if error.raw_os_error() != Some(libc::EINVAL) => {
                    Err(Error::io("could not thaw its file system", error))
                }
                _ => Ok(()),
            },
        }
    }
}

fn could_not_settle(error: std::io::Error) -> Error {
    Error::io(
        "could not test whether its file system can be frozen",
        error,
    )
}
