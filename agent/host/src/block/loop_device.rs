//! Loop devices: block devices backed by an image file.
//!
//! A device is found by its backing file, so that a repeated call never attaches a second one.

use std::{
    fs::{self, File},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, OpenOptionsExt},
    },
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    Access, holders,
    loop_table::{BackingName, describe, device_path, inspect},
    system, write_watch,
};
use crate::{Error, Kind, Result};

pub use crate::loop_table::{Backing, LoopDevice, at, find, list, list_below};

const CONTROL: &str = "/dev/loop-control";
/// The same for all devices, so that a file system with this sector size can be mounted wherever its image is moved.
/// Direct I/O is disabled where the disk below has larger sectors.
const BLOCK_SIZE: u32 = 512;
/// Maximum number of attempts to get a free device: other programs may take it first.
const ATTEMPTS: u32 = 1_000;
/// Timeout for programs that only probe a device (udev, a listing, another attach) and delay its detachment.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time before holders are searched: a device nearly always detaches at once.
const GLANCE: Duration = Duration::from_millis(100);

/// A loop device that is held open. Who detaches it meanwhile only has it detached when the hold ends: until then its name is
/// not given to another image, which a program that gets the name would format or mount.
#[derive(Debug)]
pub struct Hold {
    _open: File,
}

/// Attaches the file `image` (or another block device) to a loop device, or finds its existing one.
///
/// Idempotent. After an interruption there is a complete device or none.
///
/// # Errors
/// `Precondition` when another file that was at `image` is still attached, or when loop devices are missing.
/// `NoSpace` when no device is free.
pub fn attach(image: &Path, access: Access) -> Result<LoopDevice> {
    attach_and_hold(image, access).map(|(device, _)| device)
}

/// [`attach`], and holds the device.
///
/// # Errors
/// Those of [`attach`].
pub fn attach_and_hold(image: &Path, access: Access) -> Result<(LoopDevice, Hold)> {
    let file = open(image, access)
        .map_err(|error| Error::io(format!("could not open image {}", image.display()), error))?;
    let metadata = file
        .metadata()
        .map_err(|error| Error::io(format!("could not stat image {}", image.display()), error))?;
    if !metadata.is_file() && !metadata.file_type().is_block_device() {
        return Err(Error::new(
            Kind::Precondition,
            format!("image {} is not a regular file", image.display()),
        ));
    }
    for device in find(image)? {
        if device.backing.deleted && device.backing.path == image {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "image {} was deleted or replaced while attached to {}; unmount that device first",
                    image.display(),
                    device.path.display(),
                ),
            ));
        }
        if device.access == access
            && let Some(hold) = hold(&device)?
            && let Some(device) = keep(device)?
        {
            return Ok((device, hold));
        }
    }
    configure(image, &file, access)
}

/// Detaches a loop device and waits until it is gone. A device that is detached already, or has another file by now,
/// is left unchanged.
///
/// # Errors
/// `InUse` when it is mounted or open, naming the holders; it is then unchanged.
pub fn detach(device: &LoopDevice) -> Result<()> {
    let mut wait = Wait::new();
    loop {
        match end(device)? {
            End::Gone => return Ok(()),
            End::Asked => break,
            End::Busy => {}
        }
        // A concurrent attach that was offered this device opens it briefly.
        let lasting = holders::lasting_users_of_device(&device.path);
        if !lasting.is_empty() || wait.is_over(PATIENCE) {
            let users = holders::users_of_device(&device.path);
            return Err(holders::device_in_use(&device.path, &users));
        }
        wait.pause();
    }
    // The device is detached when its last user closes it: nearly always this process.
    let mut wait = Wait::new();
    loop {
        if inspect(device.number)?.is_none_or(|now| now.backing != device.backing) {
            return Ok(());
        }
        if wait.is_over(GLANCE) {
            let lasting = holders::lasting_users_of_device(&device.path);
            if !lasting.is_empty() || wait.is_over(PATIENCE) {
                let users = holders::users_of_device(&device.path);
                keep(LoopDevice {
                    ends_with_last_user: true,
                    ..device.clone()
                })?;
                return Err(holders::device_in_use(&device.path, &users));
            }
        }
        wait.pause();
    }
}

/// Resizes a loop device to the current size of its image.
pub fn refresh_size(device: &LoopDevice) -> Result<()> {
    File::open(&device.path)
        .and_then(system::refresh_loop_size)
        .map_err(|error| failed("resize", &device.path, error))
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

fn missing(error: io::Error) -> Error {
    Error::new(
        Kind::Precondition,
        "loop devices are missing; load them with `modprobe loop`, and mount the host's /dev into the container",
    )
    .because(error)
}

fn none_free(error: io::Error) -> Error {
    // Another device in the control device's place does not support the call.
    if error.raw_os_error() == Some(libc::ENOTTY) {
        return missing(error);
    }
    Error::new(
        Kind::NoSpace,
        "no loop device is free; detach some, or raise the kernel's `max_loop`",
    )
    .because(error)
}

fn configure(image: &Path, file: &File, access: Access) -> Result<(LoopDevice, Hold)> {
    let control = open(Path::new(CONTROL), Access::ReadWrite).map_err(missing)?;
    let flags = match access {
        Access::ReadWrite => system::LO_DIRECT_IO,
        Access::ReadOnly => system::LO_DIRECT_IO | system::LO_READ_ONLY,
    };
    for _ in 0..ATTEMPTS {
        let number = system::free_loop_device(&control).map_err(none_free)?;
        let path = device_path(number);
        let device = match open(&path, access) {
            Ok(device) => device,
            // Another process removed it first.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => continue,
            // The kernel has created it, but it is missing in /dev.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::new(
                    Kind::NoSpace,
                    format!(
                        "device node {} of the next loop device is missing; mount the host's /dev into the container, or detach loop devices",
                        path.display()
                    ),
                )
                .because(error));
            }
            Err(error) => return Err(failed("open", &path, error)),
        };
        match system::configure_loop_device(&device, file, flags, BLOCK_SIZE) {
            Ok(()) => {
                let status =
                    system::loop_status(&device).map_err(|error| failed("query", &path, error))?;
                // For reading only: a kernel may refuse to mount what is open for writing.
                let open = File::open(&path).map_err(|error| failed("open", &path, error))?;
                let name = BackingName::new(image.as_os_str().as_bytes());
                let device = describe(&status, name);
                write_watch::start_counting(&device);
                return Ok((device, Hold { _open: open }));
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
        "other programs took every free loop device; retry",
    ))
}

/// Holds a device that is in use; none if it is gone already.
fn hold(device: &LoopDevice) -> Result<Option<Hold>> {
    let opened = File::open(&device.path).and_then(|open| {
        let status = system::loop_status(&open)?;
        Ok(is_backing(&status, &device.backing).then_some(Hold { _open: open }))
    });
    unless_gone(opened)
        .map(Option::flatten)
        .map_err(|error| failed("open", &device.path, error))
}

/// None for a device that was detached before, or while, it was opened.
fn unless_gone<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOENT)) => Ok(None),
        opened => opened.map(Some),
    }
}

/// The same device, changed not to detach when its last user closes it; none if it is gone already.
fn keep(device: LoopDevice) -> Result<Option<LoopDevice>> {
    if !device.ends_with_last_user {
        return Ok(Some(device));
    }
    let is_kept = change_flags(&device, |flags| flags & !system::LO_AUTOCLEAR)?;
    Ok(is_kept.then_some(LoopDevice {
        ends_with_last_user: false,
        ..device
    }))
}

/// Lets the devices that expose all of `image` detach when their last users close them, as those that `mount` makes do. One
/// that nobody uses detaches at once.
///
/// # Errors
/// `Io`.
pub fn end_with_last_user(image: &Path) -> Result<()> {
    for device in find(image)? {
        change_flags(&device, |flags| flags | system::LO_AUTOCLEAR)?;
    }
    Ok(())
}

/// Changes the flags of a device; returns false if it is gone.
fn change_flags(device: &LoopDevice, change: fn(u32) -> u32) -> Result<bool> {
    let changed = || -> io::Result<bool> {
        let file = File::open(&device.path)?;
        let mut status = system::loop_status(&file)?;
        if !is_backing(&status, &device.backing) {
            return Ok(false);
        }
        status.flags = change(status.flags);
        system::set_loop_status(&file, status)?;
        Ok(true)
    };
    unless_gone(changed())
        .map(|changed| changed.unwrap_or(false))
        .map_err(|error| failed("change the flags of", &device.path, error))
}

/// The progress of a detachment.
enum End {
    /// It is detached.
    Gone,
    /// It will be detached when its last user closes it.
    Asked,
    /// A mount or another device uses it, and nothing was changed.
    Busy,
}

fn end(device: &LoopDevice) -> Result<End> {
    // An exclusive open fails while a mount or another device uses this one.
    let exclusive = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(&device.path);
    let asked = exclusive.and_then(|file| {
        let status = system::loop_status(&file)?;
        if !is_backing(&status, &device.backing) {
            return Ok(End::Gone);
        }
        system::clear_loop_device(&file)?;
        Ok(End::Asked)
    });
    match asked {
        Ok(end) => Ok(end),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENXIO) => Ok(End::Gone),
            Some(libc::EBUSY) => Ok(End::Busy),
            _ => Err(failed("detach", &device.path, error)),
        },
    }
}

/// Increasing pauses: the kernel does not notify when a loop device is detached.
struct Wait {
    since: Instant,
    pause: Duration,
}

impl Wait {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            pause: Duration::from_millis(1),
        }
    }

    fn is_over(&self, limit: Duration) -> bool {
        self.since.elapsed() >= limit
    }

    fn pause(&mut self) {
        thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(Duration::from_millis(50));
    }
}

fn is_backing(status: &system::LoopStatus, backing: &Backing) -> bool {
    status.device == backing.device
        && status.inode == backing.inode
        && status.offset == backing.offset
}
