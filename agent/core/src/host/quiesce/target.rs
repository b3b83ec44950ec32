//! What keeps the writers of an image waiting.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Kind, Result, fail,
    host::{
        device_mapper::{DeviceMapper, SuspendMode},
        system,
    },
};

/// Something whose writers can be kept waiting.
#[derive(Debug)]
pub enum QuiesceTarget {
    /// A device-mapper device; with it the file system that is mounted from it.
    Device {
        /// Its uuid.
        uuid: String,
    },
    /// A mounted file system, by a directory in it.
    FileSystem(File),
}

/// The same as it is told to another process, which gets the files beside it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireTarget {
    Device { uuid: String },
    FileSystem { file: usize },
}

impl QuiesceTarget {
    /// How to tell it to a process that gets `files`.
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

    /// What was told by a process that sent `files`; each file is named once.
    pub(super) fn of(told: WireTarget, files: &mut [Option<File>]) -> Option<Self> {
        match told {
            WireTarget::Device { uuid } => Some(Self::Device { uuid }),
            WireTarget::FileSystem { file } => files.get_mut(file)?.take().map(Self::FileSystem),
        }
    }

    /// Whether device-mapper is needed for it.
    pub(super) fn is_device(&self) -> bool {
        matches!(self, Self::Device { .. })
    }

    /// Has writers wait for a moment and go on, so that they wait for less when they wait next: a freeze writes a journal
    /// out that a sync leaves to be, and waits three times for all processors, which the next one need not if it comes
    /// within some milliseconds.
    pub(super) fn settle(&self) -> Result<()> {
        let Self::FileSystem(directory) = self else {
            return Ok(());
        };
        match system::freeze(directory) {
            Ok(()) => {
                fail::point("quiesce.settling");
                self.release(None)
            }
            // Somebody else has frozen it, who thaws it, too; or it cannot be.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EOPNOTSUPP)) => {
                Ok(())
            }
            Err(error) => Err(could_not_settle(error)),
        }
    }

    /// Has writers wait, after what they wrote has reached the device.
    pub(super) fn hold(&self, mapper: Option<&DeviceMapper>) -> Result<()> {
        match self {
            Self::Device { uuid } => super::open(mapper)?.suspend(uuid, SuspendMode::Clean),
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

    /// Lets writers go on; those that do not wait go on, too.
    pub(super) fn release(&self, mapper: Option<&DeviceMapper>) -> Result<()> {
        match self {
            Self::Device { uuid } => super::open(mapper)?.resume(uuid),
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
