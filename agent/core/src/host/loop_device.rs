//! Loop devices: block devices that show an image file.
//!
//! A device is found again by the file behind it, so that a repeat never makes a second one.

use std::{
    fs::{self, File},
    io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{Access, holders, system};
use crate::{Error, Kind, Result};

const CONTROL: &str = "/dev/loop-control";
/// Always the same, so that a file system with sectors of this size can be mounted wherever its image goes.
/// Direct I/O gives way where the disk below has larger sectors.
const BLOCK_SIZE: u32 = 512;
/// Between being told of a free device and taking it, others may be faster; each time, another is asked for.
const ATTEMPTS: u32 = 1_000;
/// How long someone who merely looks at a device (udev, a listing) may hold up its end.
const PATIENCE: Duration = Duration::from_secs(2);
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
pub fn find(image: &Path) -> Result<Vec<LoopDevice>> {
    let metadata = match fs::metadata(image) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            return Err(Error::io(
                format!("could not look at image {}", image.display()),
                error,
            ));
        }
    };
    let mut devices = list()?;
    devices.retain(|device| {
        metadata
            .as_ref()
            .is_some_and(|file| device.backing.is_whole(file))
            || (device.backing.deleted && device.backing.path == image)
    });
    Ok(devices)
}

/// Gives the file `image` (or another block device) a loop device, or finds the one that it has.
///
/// A repeat finds the first one's device. Interrupted, it leaves a whole device or none.
///
/// # Errors
/// `Precondition` when another file that was at `image` is still attached, or loop devices are missing.
/// `NoSpace` when there is no free one.
pub fn attach(image: &Path, access: Access) -> Result<LoopDevice> {
    let file = open(image, access)
        .map_err(|error| Error::io(format!("could not open image {}", image.display()), error))?;
    let metadata = file.metadata().map_err(|error| {
        Error::io(
            format!("could not look at image {}", image.display()),
            error,
        )
    })?;
    if !metadata.is_file() && !metadata.file_type().is_block_device() {
        return Err(Error::new(
            Kind::Precondition,
            format!("image {} is not a file", image.display()),
        ));
    }
    for device in find(image)? {
        if device.backing.deleted && device.backing.path == image {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "image {} was deleted or replaced while {} shows it; unmount that device first",
                    image.display(),
                    device.path.display(),
                ),
            ));
        }
        if device.access == access
            && let Some(device) = keep(device)?
        {
            return Ok(device);
        }
    }
    configure(image, &file, access)
}

/// Takes a loop device away and waits until it is gone. One that is gone, or shows something else by now, is left alone.
///
/// # Errors
/// `InUse` when it is mounted or open, with who does that; it then stays as it was.
pub fn detach(device: &LoopDevice) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    // An exclusive open is refused while a mount or another device sits on this one.
    let exclusive = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(&device.path);
    let file = match exclusive {
        Ok(file) => file,
        Err(error) => {
            return match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENXIO) => Ok(()),
                Some(libc::EBUSY) => Err(holders::device_in_use(&device.path)),
                _ => Err(failed("open", &device.path, error)),
            };
        }
    };
    let shows_it =
        || system::loop_status(&file).is_ok_and(|status| is_backing(&status, &device.backing));
    if !shows_it() {
        return Ok(());
    }
    match system::clear_loop_device(&file) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(holders::device_in_use(&device.path));
        }
        Err(error) => return Err(failed("detach", &device.path, error)),
    }
    // The device ends when the last one who has it open closes it: now, if that is us.
    drop(file);
    wait_until_gone(device)
}

/// Makes a loop device as large as its image is now.
pub fn refresh_size(device: &LoopDevice) -> Result<()> {
    File::open(&device.path)
        .and_then(system::refresh_loop_size)
        .map_err(|error| failed("grow", &device.path, error))
}

fn open(path: &Path, access: Access) -> io::Result<File> {
    fs::OpenOptions::new()
        .read(true)
        .write(access == Access::ReadWrite)
        .open(path)
}

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    Error::io(
        format!("could not {what} loop device {}", path.display()),
        error,
    )
}

fn device_path(number: impl std::fmt::Display) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

fn configure(image: &Path, file: &File, access: Access) -> Result<LoopDevice> {
    let control = open(Path::new(CONTROL), Access::ReadWrite).map_err(|error| {
        Error::new(
            Kind::Precondition,
            "loop devices are missing; load them with `modprobe loop`, and give a container the host's /dev",
        )
        .because(error)
    })?;
    let flags = match access {
        Access::ReadWrite => system::LO_DIRECT_IO,
        Access::ReadOnly => system::LO_DIRECT_IO | system::LO_READ_ONLY,
    };
    for _ in 0..ATTEMPTS {
        let number = system::free_loop_device(&control).map_err(|error| {
            Error::new(
                Kind::NoSpace,
                "there is no free loop device; detach some, or raise the kernel's `max_loop`",
            )
            .because(error)
        })?;
        let path = device_path(number);
        let device = match open(&path, access) {
            Ok(device) => device,
            // Removed again by another before it was ours.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => continue,
            Err(error) => return Err(failed("open", &path, error)),
        };
        match system::configure_loop_device(&device, file, flags, BLOCK_SIZE) {
            Ok(()) => {
                let status = system::loop_status(&device)
                    .map_err(|error| failed("look at", &path, error))?;
                return Ok(describe(&status, image.as_os_str().as_bytes().to_vec()));
            }
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => {
                return Err(Error::io(
                    format!(
                        "could not attach image {} to {}",
                        image.display(),
                        path.display()
                    ),
                    error,
                ));
            }
        }
    }
    Err(Error::new(
        Kind::Busy,
        "every free loop device was taken by another program; ask again",
    ))
}

/// The same device, made to stay when its last user goes; none if it has just gone.
fn keep(device: LoopDevice) -> Result<Option<LoopDevice>> {
    if !device.ends_with_last_user {
        return Ok(Some(device));
    }
    let keep = || -> io::Result<bool> {
        let file = File::open(&device.path)?;
        let mut status = system::loop_status(&file)?;
        if !is_backing(&status, &device.backing) {
            return Ok(false);
        }
        status.flags &= !system::LO_AUTOCLEAR;
        system::set_loop_status(&file, status)?;
        Ok(true)
    };
    match keep() {
        Ok(true) => Ok(Some(LoopDevice {
            ends_with_last_user: false,
            ..device
        })),
        Ok(false) => Ok(None),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOENT)) => Ok(None),
        Err(error) => Err(failed("keep", &device.path, error)),
    }
}

fn wait_until_gone(device: &LoopDevice) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(1);
    loop {
        let now = inspect(device.number)?;
        if now.is_none_or(|now| now.backing != device.backing) {
            return Ok(());
        }
        if Instant::now() >= deadline || holders::has_device_open(&device.path) {
            keep(LoopDevice {
                ends_with_last_user: true,
                ..device.clone()
            })?;
            return Err(holders::device_in_use(&device.path));
        }
        // The kernel tells nobody when a loop device ends; in almost every case it is gone at the first look.
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn list_where(wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<LoopDevice>> {
    let failed = |error| Error::io("could not read /sys/block", error);
    let mut devices = Vec::new();
    for entry in fs::read_dir("/sys/block").map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.strip_prefix("loop")) else {
            continue;
        };
        let Ok(number) = number.parse() else { continue };
        if let Some(device) = inspect_where(number, &wanted)? {
            devices.push(device);
        }
    }
    devices.sort_unstable_by_key(|device| device.number);
    Ok(devices)
}

fn inspect(number: u32) -> Result<Option<LoopDevice>> {
    inspect_where(number, &|_| true)
}

/// The loop device with this number, if it is in use and the path of its backing file is wanted.
fn inspect_where(number: u32, wanted: &impl Fn(&[u8]) -> bool) -> Result<Option<LoopDevice>> {
    // Only what is in use has this file: nothing is opened without need, for an open device cannot end.
    let Ok(mut backing) = fs::read(format!("/sys/block/loop{number}/loop/backing_file")) else {
        return Ok(None);
    };
    if backing.last() == Some(&b'\n') {
        backing.pop();
    }
    if !wanted(&backing) {
        return Ok(None);
    }
    let path = device_path(number);
    match File::open(&path).and_then(system::loop_status) {
        Ok(status) => Ok(Some(describe(&status, backing))),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOENT)) => Ok(None),
        Err(error) => Err(failed("look at", &path, error)),
    }
}

fn describe(status: &system::LoopStatus, mut backing: Vec<u8>) -> LoopDevice {
    let deleted = backing.ends_with(DELETED);
    if deleted {
        backing.truncate(backing.len() - DELETED.len());
    }
    let is_set = |flag| status.flags & flag != 0;
    LoopDevice {
        number: status.number,
        path: device_path(status.number),
        backing: Backing {
            device: status.device,
            inode: status.inode,
            device_id: status.device_id,
            path: PathBuf::from(std::ffi::OsString::from_vec(backing)),
            deleted,
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

fn is_backing(status: &system::LoopStatus, backing: &Backing) -> bool {
    status.device == backing.device
        && status.inode == backing.inode
        && status.offset == backing.offset
}
