//! Trimming: returning the free blocks of file systems to the storage below.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use crate::{Error, Kind, Result, trace};
use crate::{FileSystem, MountOptions, fsync::syncfs, system};

/// Discards the free blocks of a mounted file system. A device that does not support it is not an error.
///
/// # Errors
/// `Precondition` when it is read-only.
pub fn trim(mount_point: &Path) -> Result<()> {
    let directory = File::open(mount_point);
    let directory = directory.map_err(|error| failed(mount_point, error))?;
    trim_open(&directory, mount_point)
}

/// As [`trim`], for an unmounted file system: it is mounted invisibly meanwhile, and is unmounted when this process
/// ends.
///
/// # Errors
/// `Precondition` when the kernel cannot mount it.
pub fn trim_unmounted(device: &Path, kind: FileSystem) -> Result<()> {
    let options = MountOptions::parse(kind, &[""; 0])?.words();
    let span = trace::mount(device);
    let mount = system::mount_aside(device, kind.name(), &options);
    drop(span);
    let mount: OwnedFd = mount.map_err(|error| {
        Error::new(
            Kind::Precondition,
            format!("could not mount the {kind} of {}", device.display()),
        )
        .because(Error::io("fsmount", error))
    })?;
    let directory = nix::fcntl::openat(
        mount.as_fd(),
        ".",
        nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_CLOEXEC,
        nix::sys::stat::Mode::empty(),
    );
    let directory = directory.map_err(|errno| failed(device, errno.into()))?;
    trim_open(&directory, device)
}

fn trim_open(directory: impl AsFd, what: &Path) -> Result<()> {
    // Recently freed blocks are not free on the disk before the journal is committed.
    syncfs(&directory).map_err(|error| failed(what, error))?;
    match system::trim(directory) {
        Err(error) if error.raw_os_error() == Some(libc::EROFS) => Err(Error::new(
            Kind::Precondition,
            format!("{} is read-only", what.display()),
        )),
        Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => Err(failed(what, error)),
        _ => Ok(()),
    }
}

fn failed(what: &Path, error: std::io::Error) -> Error {
    Error::io(
        format!("could not trim the free blocks of {}", what.display()),
        error,
    )
}
