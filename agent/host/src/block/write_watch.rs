//! Detects writes to an image through its loop devices, which cannot be suspended: the kernel counts them.

use std::{
    fs::{self, File, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::{Access, DeviceNumber, loop_device::LoopDevice};
use crate::{Error, Kind, Result};

/// Timeout for in-flight writes at the start of a watch. The kernel counts a write slightly after its sync was
/// acknowledged, and later on a busy processor.
const SETTLING: Duration = Duration::from_millis(200);

/// The kernel's counters for an image at one point in time.
#[derive(Debug)]
pub struct WriteWatch {
    image: File,
    times: Times,
    devices: Vec<Device>,
}

/// Modification times of the file's data and inode. Too coarse to be the only indication.
type Times = [i64; 4];

#[derive(Debug)]
struct Device {
    /// Its directory in sysfs.
    sysfs: PathBuf,
    done: Done,
}

/// The writes and discards that a device has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Done {
    writes: u64,
    write_sectors: u64,
    discards: u64,
}

impl WriteWatch {
    /// Watches `image` and its writable devices.
    ///
    /// # Errors
    /// `InUse` while one of them is written continuously, `Precondition` where the kernel's I/O statistics are
    /// disabled.
    pub fn begin(image: &File, devices: &[LoopDevice]) -> Result<Self> {
        let failed = |error| Error::io("could not watch an image for writes", error);
        let mut watched = Vec::new();
        for device in devices {
            if device.access == Access::ReadOnly {
                continue;
            }
            let number = DeviceNumber::of_block_device(&device.path)?;
            let sysfs = PathBuf::from(format!("/sys/dev/block/{number}"));
            if !counts(&sysfs).map_err(failed)? {
                return Err(Error::new(
                    Kind::Precondition,
                    format!(
                        "the kernel does not count writes to {}; enable I/O statistics with `echo 1 > /sys/block/loop{}/queue/iostats`",
                        device.path.display(),
                        device.number
                    ),
                ));
            }
            // First the in-flight writes: a write that ends in between is counted.
            let begun = Instant::now();
            while has_writes_in_flight(&sysfs).map_err(failed)? {
                if begun.elapsed() > SETTLING {
                    let message = format!(
                        "{} is in use: writes to it are in flight",
                        device.path.display()
                    );
                    return Err(Error::new(Kind::InUse, message));
                }
                thread::sleep(Duration::from_millis(1));
            }
            let done = Done::of(&sysfs).map_err(failed)?;
            watched.push(Device { sysfs, done });
        }
        let image = image.try_clone().map_err(failed)?;
        let times = image.metadata().map(|now| times(&now)).map_err(failed)?;
        Ok(Self {
            image,
            times,
            devices: watched,
        })
    }

    /// Returns true if anything was written, or is in flight, since the watch began.
    pub fn saw_writes(&self) -> io::Result<bool> {
        for device in &self.devices {
            let in_flight = has_writes_in_flight(&device.sysfs)?;
            if in_flight || Done::of(&device.sysfs)? != device.done {
                return Ok(true);
            }
        }
        // A write is counted slightly after its data arrives; the file's times change before.
        Ok(times(&self.image.metadata()?) != self.times)
    }
}

impl Done {
    fn of(sysfs: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(sysfs.join("stat"))?;
        Self::parse(&text).ok_or_else(|| unreadable("stat", &text))
    }

    /// Parses `/sys/block/<device>/stat`, as described in the kernel's Documentation/block/stat.rst.
    fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<u64> = text
            .split_whitespace()
            .map(str::parse)
            .collect::<std::result::Result<_, _>>()
            .ok()?;
        Some(Self {
            writes: *numbers.get(4)?,
            write_sectors: *numbers.get(6)?,
            discards: *numbers.get(11)?,
        })
    }
}

/// Enables I/O statistics of a loop device that was just attached. A device keeps the setting that an administrator
/// made for its previous file.
pub(crate) fn start_counting(device: &LoopDevice) {
    let sysfs = PathBuf::from(format!("/sys/block/loop{}", device.number));
    // Written only if necessary, because the kernel briefly freezes the device for it. Where that is not permitted, a
    // watch reports it.
    if let Ok(false) = counts(&sysfs) {
        let _ = fs::write(sysfs.join("queue/iostats"), "1");
    }
}

fn counts(sysfs: &Path) -> io::Result<bool> {
    let text = fs::read_to_string(sysfs.join("queue/iostats"))?;
    Ok(text.trim() != "0")
}

fn has_writes_in_flight(sysfs: &Path) -> io::Result<bool> {
    let text = fs::read_to_string(sysfs.join("inflight"))?;
    let writes = text.split_whitespace().nth(1);
    let writes: Option<u64> = writes.and_then(|number| number.parse().ok());
    writes
        .map(|writes| writes > 0)
        .ok_or_else(|| unreadable("inflight", &text))
}

fn times(file: &Metadata) -> Times {
    [
        file.mtime(),
        file.mtime_nsec(),
        file.ctime(),
        file.ctime_nsec(),
    ]
}

fn unreadable(file: &str, text: &str) -> io::Error {
    io::Error::other(format!(
        "could not parse {text:?} in `{file}` of a block device"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_writes_and_discards_are_read() {
        let text = "  1 2 3 4  50 6 70 8 0 10 11  120 13 14 15 16 17\n";
        let done = Done {
            writes: 50,
            write_sectors: 70,
            discards: 120,
        };
        assert_eq!(Done::parse(text), Some(done));
        for text in [
            "",
            "1 2 3 4 5 6 7 8 9 10 11",
            "1 2 3 4 five 6 7 8 9 10 11 12",
        ] {
            assert_eq!(Done::parse(text), None, "{text}");
        }
    }
}
