//! The loop devices in use and their backing files, read from the kernel each time.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use crate::{Access, system};
use crate::{Error, Result};

/// The suffix that the kernel appends to the path of a deleted backing file.
const DELETED: &[u8] = b" (deleted)";

/// A loop device in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// The N of `/dev/loopN`.
    pub number: u32,
    /// The block device.
    pub path: PathBuf,
    /// Its backing file.
    pub backing: Backing,
    /// Its access mode.
    pub access: Access,
    /// True if it bypasses the page cache of its backing file.
    pub direct_io: bool,
    /// True if it detaches with its last user: set by `mount -o loop`, or by a requested detachment.
    pub ends_with_last_user: bool,
}

/// The backing file of a loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// `st_dev` of the file.
    pub device: u64,
    /// `st_ino` of the file.
    pub inode: u64,
    /// `st_rdev`, if the file is a block device; 0 for a regular file.
    pub device_id: u64,
    /// The current path of the file, or its last one if it was deleted.
    pub path: PathBuf,
    /// True if the file was deleted, or replaced by another.
    pub deleted: bool,
    /// The offset in the file at which the device begins.
    pub offset: u64,
    /// The number of bytes of the file that it exposes; 0 for all.
    pub size_limit: u64,
}

impl Backing {
    /// Returns true if this is all of the file with this metadata.
    pub fn is_whole(&self, file: &fs::Metadata) -> bool {
        let same = if file.file_type().is_block_device() {
            self.device_id == file.rdev()
        } else {
            self.device == file.dev() && self.inode == file.ino()
        };
        same && self.offset == 0 && self.size_limit == 0
    }
}

/// All loop devices in use, by number, in one pass.
pub fn list() -> Result<Vec<LoopDevice>> {
    list_where(|_| true)
}

/// The loop devices whose backing files are below `directory`, or were, by number. No other device is opened.
pub fn list_below(directory: &Path) -> Result<Vec<LoopDevice>> {
    list_where(|backing| backing.path.starts_with(directory))
}

/// The loop devices that expose all of `image`, and those of a file that was at this path before.
///
/// No other device is opened: an open device cannot be detached.
pub fn find(image: &Path) -> Result<Vec<LoopDevice>> {
    let metadata = match fs::metadata(image) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            return Err(Error::io(
                format!("could not stat image {}", image.display()),
                error,
            ));
        }
    };
    let mut devices = list_where(|backing| {
        // The path is the file's current one, even after a rename. In another mount namespace it may not exist, or be
        // another file: then the status of the device itself is read.
        backing.path.as_os_str() == image.as_os_str()
            || match fs::metadata(&backing.path) {
                Ok(found) => metadata.as_ref().is_some_and(|file| is_same(file, &found)),
                Err(_) => !backing.deleted,
            }
    })?;
    devices.retain(|device| {
        metadata
            .as_ref()
            .is_some_and(|file| device.backing.is_whole(file))
            || (device.backing.deleted && device.backing.path == image)
    });
    Ok(devices)
}

/// The loop device at `path`, as `/dev/loop7`, if it is in use.
pub fn at(path: &Path) -> Result<Option<LoopDevice>> {
    let number = path
        .strip_prefix("/dev")
        .ok()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_prefix("loop"))
        .and_then(|number| number.parse().ok());
    match number {
        Some(number) => inspect(number),
        None => Ok(None),
    }
}

/// The loop devices whose backing file is the block device at `device`; best effort, for messages.
pub(crate) fn stacked_on(device: &Path) -> Vec<PathBuf> {
    let numbers = numbers().unwrap_or_default().into_iter();
    numbers
        .filter(|number| {
            let name = backing_name(*number).ok().flatten();
            name.is_some_and(|name| name.path.as_os_str() == device.as_os_str())
        })
        .map(device_path)
        .collect()
}

/// The loop device with this number, if it is in use.
pub(crate) fn inspect(number: u32) -> Result<Option<LoopDevice>> {
    match backing_name(number)? {
        Some(name) => look_at(number, name),
        None => Ok(None),
    }
}

pub(crate) fn device_path(number: impl std::fmt::Display) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// The path of a backing file, as reported by the kernel.
pub(crate) struct BackingName {
    path: PathBuf,
    deleted: bool,
}

impl BackingName {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let name = bytes.strip_suffix(DELETED);
        Self {
            path: PathBuf::from(OsStr::from_bytes(name.unwrap_or(bytes))),
            deleted: name.is_some(),
        }
    }
}

fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    if one.file_type().is_block_device() {
        other.file_type().is_block_device() && one.rdev() == other.rdev()
    } else {
        one.dev() == other.dev() && one.ino() == other.ino()
    }
}

fn list_where(wanted: impl Fn(&BackingName) -> bool) -> Result<Vec<LoopDevice>> {
    let mut devices = Vec::new();
    for number in numbers()? {
        if let Some(name) = backing_name(number)?
            && wanted(&name)
            && let Some(device) = look_at(number, name)?
        {
            devices.push(device);
        }
    }
    Ok(devices)
}

/// The numbers of all loop devices, in use or not.
fn numbers() -> Result<Vec<u32>> {
    let failed = |error| Error::io("could not read /sys/block", error);
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/sys/block").map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop"));
        numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The backing file of a device as the kernel reports it; only a device in use has one.
///
/// # Errors
/// `Io` when it cannot be read. That does not count as not in use: an image without a device may be deleted.
fn backing_name(number: u32) -> Result<Option<BackingName>> {
    let path = format!("/sys/block/loop{number}/loop/backing_file");
    read_backing_name(Path::new(&path))
        .map_err(|error| Error::io(format!("could not read {path}"), error))
}

fn read_backing_name(path: &Path) -> io::Result<Option<BackingName>> {
    // A sysfs file has at most one page, and one read gets all of it: with thousands of devices that matters.
    let mut page = [0; 4096];
    let length = match File::open(path).and_then(|mut file| file.read(&mut page)) {
        Ok(length) => length,
        // It was detached before the file was opened, or before it was read.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {
            return Ok(None);
        }
        // A path that does not fit into the page: the status of the device itself is read.
        Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => 0,
        Err(error) => return Err(error),
    };
    let bytes = page.get(..length).unwrap_or_default();
    let name = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    Ok(Some(BackingName::new(name)))
}

fn look_at(number: u32, name: BackingName) -> Result<Option<LoopDevice>> {
    let path = device_path(number);
    match File::open(&path).and_then(system::loop_status) {
        Ok(status) => Ok(Some(describe(&status, name))),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOENT)) => Ok(None),
        Err(error) => Err(Error::io(
            format!("could not stat loop device {}", path.display()),
            error,
        )),
    }
}

pub(crate) fn describe(status: &system::LoopStatus, name: BackingName) -> LoopDevice {
    let is_set = |flag| status.flags & flag != 0;
    LoopDevice {
        number: status.number,
        path: device_path(status.number),
        backing: Backing {
            device: status.device,
            inode: status.inode,
            device_id: status.device_id,
            path: name.path,
            deleted: name.deleted,
            offset: status.offset,
            size_limit: status.size_limit,
        },
        access: if is_set(system::LO_READ_ONLY) {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        },
        direct_io: is_set(system::LO_DIRECT_IO),
        ends_with_last_user: is_set(system::LO_AUTOCLEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backing_file_that_cannot_be_read_does_not_count_as_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("backing_file");
        assert!(read_backing_name(&path).unwrap().is_none());
        fs::write(&path, "/images/a b (deleted)\n").unwrap();
        let name = read_backing_name(&path).unwrap().unwrap();
        assert_eq!((name.path, name.deleted), ("/images/a b".into(), true));
        // A case for any other error, such as too many open files.
        let unreadable = read_backing_name(directory.path()).map(|name| name.is_some());
        assert_eq!(unreadable.unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }
}
