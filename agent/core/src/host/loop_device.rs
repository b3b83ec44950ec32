//! Loop devices: block devices that show an image file.
//!
//! A device is found again by the file behind it, so that a repeat never makes a second one.

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

use super::{
    Access, holders,
    loop_table::{BackingName, describe, device_path, inspect},
    system, write_watch,
};
use crate::{Error, Kind, Result};

pub use super::loop_table::{Backing, LoopDevice, at, find, list};

const CONTROL: &str = "/dev/loop-control";
/// Always the same, so that a file system with sectors of this size can be mounted wherever its image goes.
/// Direct I/O gives way where the disk below has larger sectors.
const BLOCK_SIZE: u32 = 512;
/// Between being told of a free device and taking it, others may be faster; each time, another is asked for.
const ATTEMPTS: u32 = 1_000;
/// How long someone who merely looks at a device (udev, a listing, another attach) may hold up its end.
const PATIENCE: Duration = Duration::from_secs(2);
/// So long nobody is looked for: in almost every case the device ends at once.
const GLANCE: Duration = Duration::from_millis(100);

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
    let mut wait = Wait::new();
    loop {
        match end(device)? {
            End::Gone => return Ok(()),
            End::Asked => break,
            End::Busy => {}
        }
        // Another attach that was told of this device claims it for an instant; that passes.
        let lasting = holders::lasting_users_of_device(&device.path);
        if !lasting.is_empty() || wait.is_over(PATIENCE) {
            let users = holders::users_of_device(&device.path);
            return Err(holders::device_in_use(&device.path, &users));
        }
        wait.pause();
    }
    // The device ends when the last one who has it open closes it: with us, in almost every case.
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

/// Makes a loop device as large as its image is now.
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
    // Whatever else is in the control device's place knows no such call.
    if error.raw_os_error() == Some(libc::ENOTTY) {
        return missing(error);
    }
    Error::new(
        Kind::NoSpace,
        "no loop device is free; detach some, or raise the kernel's `max_loop`",
    )
    .because(error)
}

fn configure(image: &Path, file: &File, access: Access) -> Result<LoopDevice> {
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
            // Removed again by another before it was ours.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => continue,
            // The kernel has it, and /dev was not given it.
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
                let name = BackingName::new(image.as_os_str().as_bytes());
                let device = describe(&status, name);
                write_watch::start_counting(&device);
                return Ok(device);
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

/// How far the end of a device has come.
enum End {
    /// It is not there.
    Gone,
    /// It is there until the last one who has it open closes it.
    Asked,
    /// A mount or another device has it, and nothing was changed.
    Busy,
}

fn end(device: &LoopDevice) -> Result<End> {
    // An exclusive open is refused while a mount or another device sits on this one.
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

/// Ever longer pauses: the kernel tells nobody when a loop device ends.
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
