//! Growing a file system to the size of its device.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use crate::{Disk, FileSystem, Probe, exec::Program, filesystem, format::require, probe, system};
use crate::{Error, Kind, Result, blocking};

/// The result of [`grow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// It was smaller than its device, and was grown.
    Grown,
    /// It had its maximum size already.
    Already,
    /// It is smaller than its device and mounted read-only, so it was not grown.
    ReadOnly,
}

/// A smaller remainder may be less than a block of the file system.
const LARGEST_BLOCK: u64 = 64 << 10;

/// Grows the file system mounted at `mount_point` to the size of its block device `device`.
///
/// Runs no program if there is nothing to do. Idempotent; can be repeated after an interruption.
///
/// # Errors
/// `Invalid` when its programs are missing. `Precondition` when this process is not permitted to grow a mounted file
/// system; [`grow_unmounted`] can then do it while the volume is not in use.
pub async fn grow(device: &Path, mount_point: &Path, kind: FileSystem) -> Result<Growth> {
    match needs(device, mount_point, kind).await? {
        Growth::Grown => {}
        other => return Ok(other),
    }
    let (name, program) = match kind {
        FileSystem::Ext4 => ("resize2fs", vec![device.as_os_str()]),
        FileSystem::Xfs => ("xfs_growfs", vec!["-d".as_ref(), mount_point.as_os_str()]),
        FileSystem::Btrfs => (
            "btrfs",
            vec![
                "filesystem".as_ref(),
                "resize".as_ref(),
                "max".as_ref(),
                mount_point.as_os_str(),
            ],
        ),
    };
    let program = Program::changing(name).args(program);
    require(name, kind).await?;
    if kind == FileSystem::Ext4 && !may_grow_mounted_ext4() {
        return Err(Error::new(
            Kind::Precondition,
            format!(
                "extending the mounted ext4 at {} requires the capability CAP_SYS_RESOURCE; grant it to the agent, or unmount the volume: it is extended before its next mount",
                mount_point.display()
            ),
        ));
    }
    program.run().await?;
    Ok(Growth::Grown)
}

/// Grows the unmounted ext4 on `device` to the device's size, after a check; xfs and btrfs grow only while mounted.
///
/// Runs no program if there is nothing to do. Idempotent; can be repeated after an interruption.
///
/// # Errors
/// `Command` when the check finds damage that it cannot repair without data loss; the data is then unchanged.
pub async fn grow_unmounted(device: &Path, kind: FileSystem) -> Result<Growth> {
    let path = device.to_owned();
    let found = blocking(move || {
        let room = size_of(&path)?;
        Ok((room, probe(&path)?))
    });
    match found.await? {
        (room, Probe::Known(found))
            if found.kind == FileSystem::Ext4
                && kind == FileSystem::Ext4
                && room.saturating_sub(found.size_bytes) >= LARGEST_BLOCK => {}
        _ => return Ok(Growth::Already),
    }
    require("resize2fs", kind).await?;
    // resize2fs refuses a file system that was not checked since its last mount. Exit status 1 of e2fsck means that
    // errors were corrected; that is not a failure, and happens after any journal replay.
    let check = Program::changing("e2fsck").args(["-f", "-p"]).arg(device);
    check.success_up_to(1).run().await?;
    Program::changing("resize2fs").arg(device).run().await?;
    Ok(Growth::Grown)
}

/// Returns true if this process has `CAP_SYS_RESOURCE`, which the kernel requires to grow a mounted ext4.
pub fn may_grow_mounted_ext4() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    // If it cannot be read, the kernel will decide.
    effective.is_none_or(|set| set >> CAP_SYS_RESOURCE & 1 == 1)
}

async fn needs(device: &Path, mount_point: &Path, kind: FileSystem) -> Result<Growth> {
    let (device, mount_point): (PathBuf, PathBuf) = (device.to_owned(), mount_point.to_owned());
    blocking(move || {
        let room = size_of(&device)?;
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

fn size_of(device: &Path) -> Result<u64> {
    File::open(device)
        .and_then(|device| filesystem::size_of_file(&device))
        .map_err(|error| failed(device, error))
}

fn size_of_mounted(device: &Path, mount_point: &Path, kind: FileSystem) -> Result<u64> {
    let ask = |size: fn(File) -> io::Result<u64>| {
        File::open(mount_point)
            .and_then(size)
            .map_err(|error| failed(mount_point, error))
    };
    match kind {
        // ext4 keeps its superblock in the page cache of its device, so a read returns the current one.
        FileSystem::Ext4 => match probe(device)? {
            Probe::Known(found) if found.kind == kind => Ok(found.size_bytes),
            _ => Err(Error::new(
                Kind::Precondition,
                format!(
                    "{} is mounted but does not contain {kind} any more",
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
