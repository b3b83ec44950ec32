//! Which loop devices there are and what is behind them, asked of the kernel each time.

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

use super::{Access, system};
use crate::{Error, Result};

/// What the kernel appends to the path of a backing file that has lost its name.
const DELETED: &[u8] = b" (deleted)";

/// A loop device in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// The N of `/dev/loopN`.
    pub number: u32,
    /// The block device.
    pub path: PathBuf,
    /// What it shows.
    pub backing: Backing,
    /// Whether it takes writes.
    pub access: Access,
    /// Whether it passes the page cache of its backing file by.
    pub direct_io: bool,
    /// Whether it goes away with its last user: made so by `mount -o loop`, or an end that was asked for.
    pub ends_with_last_user: bool,
}

/// What a loop device shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// `st_dev` of the file.
    pub device: u64,
    /// `st_ino` of the file.
    pub inode: u64,
    /// The block device that the file is, as `st_rdev` has it; 0 for a regular file.
    pub device_id: u64,
    /// The path of the file, as it is now or was when it lost its name.
    pub path: PathBuf,
    /// Whether the file has lost its name: deleted, or replaced by another.
    pub deleted: bool,
    /// Where in the file the device begins.
    pub offset: u64,
    /// How many bytes of the file it shows; 0 is all.
    pub size_limit: u64,
}

impl Backing {
    /// Whether this is the whole of the file with this metadata.
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

/// The loop devices that show the whole of `image`, and those that show a file that once was there.
///
/// No other device is opened: one that somebody has open cannot end.
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
        // The path is the file's own, whatever it was renamed to since. Seen from elsewhere it may lead
        // nowhere, or to another file: then the device itself is asked.
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

/// The loop devices whose backing file is the block device at `device`: for people, so as many as can be found out.
pub(super) fn stacked_on(device: &Path) -> Vec<PathBuf> {
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
pub(super) fn inspect(number: u32) -> Result<Option<LoopDevice>> {
    match backing_name(number)? {
        Some(name) => look_at(number, name),
        None => Ok(None),
    }
}

pub(super) fn device_path(number: impl std::fmt::Display) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// The path of a backing file, as the kernel shows it.
pub(super) struct BackingName {
    path: PathBuf,
    deleted: bool,
}

impl BackingName {
    pub(super) fn new(bytes: &[u8]) -> Self {
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

/// What the kernel shows as a device's backing file; only a device in use has one.
///
/// # Errors
/// `Io` for what cannot be read. It does not count as a device that is not in use: an image without one may be deleted.
fn backing_name(number: u32) -> Result<Option<BackingName>> {
    let path = format!("/sys/block/loop{number}/loop/backing_file");
    read_backing_name(Path::new(&path))
        .map_err(|error| Error::io(format!("could not read {path}"), error))
}

fn read_backing_name(path: &Path) -> io::Result<Option<BackingName>> {
    // One page is all that a file of sysfs can hold, and one read gets it: with thousands of devices that counts.
    let mut page = [0; 4096];
    let length = match File::open(path).and_then(|mut file| file.read(&mut page)) {
        Ok(length) => length,
        // It ended before the file was opened, or before it was read.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {
            return Ok(None);
        }
        // A path that does not fit into the page: the device itself is asked what it shows.
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

pub(super) fn describe(status: &system::LoopStatus, name: BackingName) -> LoopDevice {
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
        // What any other error does, as that of a process that has too many files open.
        let unreadable = read_backing_name(directory.path()).map(|name| name.is_some());
        assert_eq!(unreadable.unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }
}
