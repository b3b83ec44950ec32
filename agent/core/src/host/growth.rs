//! A file system follows its device.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use super::{
    Disk, FileSystem, Probe,
    exec::Program,
    filesystem,
    format::{blocking, require},
    probe, system,
};
use crate::{Error, Kind, Result};

/// What [`grow`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// It was smaller than its device, and is not any more.
    Grown,
    /// It was as large as it can be.
    Already,
    /// It is smaller than its device and mounted read-only, so it stays that.
    ReadOnly,
}

/// A smaller rest need not be a block of the file system.
const LARGEST_BLOCK: u64 = 64 << 10;

/// Makes the file system mounted at `mount_point` as large as its block device `device`.
///
/// No program is started when it is that already. May be repeated and interrupted.
///
/// # Errors
/// `Invalid` when its programs are missing.
pub async fn grow(device: &Path, mount_point: &Path, kind: FileSystem) -> Result<Growth> {
    match needs(device, mount_point, kind).await? {
        Growth::Grown => {}
        other => return Ok(other),
    }
    let program = match kind {
        FileSystem::Ext4 => Program::changing("resize2fs").arg(device),
        FileSystem::Xfs => Program::changing("xfs_growfs").arg("-d").arg(mount_point),
        FileSystem::Btrfs => Program::changing("btrfs")
            .args(["filesystem", "resize", "max"])
            .arg(mount_point),
    };
    require(program.name(), kind)?;
    program.run().await?;
    Ok(Growth::Grown)
}

async fn needs(device: &Path, mount_point: &Path, kind: FileSystem) -> Result<Growth> {
    let (device, mount_point): (PathBuf, PathBuf) = (device.to_owned(), mount_point.to_owned());
    blocking(move || {
        let room = File::open(&device)
            .and_then(|device| filesystem::size_of_file(&device))
            .map_err(|error| failed(&device, error))?;
        let size = size_of_mounted(&device, &mount_point, kind)?;
        if room.saturating_sub(size) < LARGEST_BLOCK {
            Ok(Growth::Already)
        } else if Disk::of(&mount_point)?.is_read_only {
            Ok(Growth::ReadOnly)
        } else {
            Ok(Growth::Grown)
        }
    })
    .await
}

fn size_of_mounted(device: &Path, mount_point: &Path, kind: FileSystem) -> Result<u64> {
    let ask = |size: fn(File) -> io::Result<u64>| {
        File::open(mount_point)
            .and_then(size)
            .map_err(|error| failed(mount_point, error))
    };
    match kind {
        // ext4 keeps its superblock in the page cache of its device, so a read sees the current one.
        FileSystem::Ext4 => match probe(device)? {
            Probe::Known(found) if found.kind == kind => Ok(found.size_bytes),
            _ => Err(Error::new(
                Kind::Precondition,
                format!(
                    "{} is mounted and holds no {kind} any more",
                    device.display()
                ),
            )),
        },
        FileSystem::Xfs => ask(system::xfs_size),
        FileSystem::Btrfs => ask(system::btrfs_size),
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::io(
        format!("could not read the size of {}", path.display()),
        error,
    )
}
