//! Limits of the rate of reads and writes of a block device, by the io controller of cgroup v2 (`io.max`).
//!
//! The kernel throttles by cgroup and device. A limit is set in each cgroup directly below the root (systemd's slices, that
//! of the pods): whoever uses the device is in one of them, wherever it is started later. All that is below one cgroup shares
//! the limit. What is in the root itself is not throttled: threads of the kernel, such as those of a file system's journal.

use std::{
    collections::BTreeSet,
    fmt, fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    unistd::{AccessFlags, access},
};

use crate::{DeviceNumber, Error, Kind, Result};

/// Where the hierarchy is on a host with cgroup v2 alone.
pub const ROOT: &str = "/sys/fs/cgroup";
/// Which controllers the top cgroups have.
const CONTROL: &str = "cgroup.subtree_control";

/// The lowest limit of bytes per second that is useful: one page of the page cache.
pub const LOWEST_BYTES: u64 = 4096;
/// The lowest limit of operations per second: most kernels since 5.10 refuse 1.
pub const LOWEST_IOPS: u64 = 2;

/// The highest rates of a block device; none where there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoLimits {
    /// Reads per second.
    pub read_iops: Option<u64>,
    /// Writes per second.
    pub write_iops: Option<u64>,
    /// Bytes read per second.
    pub read_bytes: Option<u64>,
    /// Bytes written per second.
    pub write_bytes: Option<u64>,
}

impl IoLimits {
    /// Returns true if nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The lower one of each rate of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let lower = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        Self {
            read_iops: lower(self.read_iops, other.read_iops),
            write_iops: lower(self.write_iops, other.write_iops),
            read_bytes: lower(self.read_bytes, other.read_bytes),
            write_bytes: lower(self.write_bytes, other.write_bytes),
        }
    }

    /// Parses what follows the device in a line of `io.max`.
    fn parse(words: &str) -> Self {
        let mut limits = Self::default();
        for word in words.split_ascii_whitespace() {
            let Some((key, value)) = word.split_once('=') else {
                continue;
            };
            let value = value.parse().ok();
            match key {
                "riops" => limits.read_iops = value,
                "wiops" => limits.write_iops = value,
                "rbps" => limits.read_bytes = value,
                "wbps" => limits.write_bytes = value,
                _ => {}
            }
        }
        limits
    }
}

impl fmt::Display for IoLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = [
            ("rbps", self.read_bytes),
            ("wbps", self.write_bytes),
            ("riops", self.read_iops),
            ("wiops", self.write_iops),
        ];
        for (index, (key, rate)) in rates.into_iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            match rate {
                Some(rate) => write!(f, "{space}{key}={rate}")?,
                None => write!(f, "{space}{key}=max")?,
            }
        }
        Ok(())
    }
}

/// The cgroup v2 hierarchy of the host.
#[derive(Debug, Clone)]
pub struct Cgroups {
    root: PathBuf,
}

impl Cgroups {
    /// The hierarchy that is mounted here.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Checks that limits can be set: the hierarchy is one of cgroup v2, has the io controller, and a cgroup.
    ///
    /// # Errors
    /// [`Kind::Precondition`] with what is missing.
    pub fn check(&self) -> Result<()> {
        let refused = |why: &str| {
            Err(Error::new(
                Kind::Precondition,
                format!("{} {why}", self.root.display()),
            ))
        };
        let Ok(controllers) = fs::read_to_string(self.root.join("cgroup.controllers")) else {
            return refused("is no cgroup v2 hierarchy");
        };
        if !has_io(&controllers) {
            return refused("has no io controller: the kernel is without it, or cgroup v1 has it");
        }
        if self.top()?.is_empty() {
            return refused("has no cgroups: nothing is limited in the root itself");
        }
        // Also in a mount that is read-only.
        if access(&self.root.join(CONTROL), AccessFlags::W_OK).is_err() {
            return refused("cannot be written");
        }
        Ok(())
    }

    /// Sets the limits of these devices in all top cgroups. A device without limits has none afterwards, and one that is gone
    /// is left out. Returns the number of limits that were changed. Idempotent. What one cgroup or device refuses does not keep
    /// the others from theirs.
    ///
    /// # Errors
    /// [`Kind::Precondition`] if there are limits that cannot be set, [`Kind::Io`]; the first one that there was.
    pub fn limit(&self, devices: &[(DeviceNumber, IoLimits)]) -> Result<usize> {
        if devices.iter().any(|(_, limits)| !limits.is_none()) {
            self.check()?;
            self.enable_io()?;
        } else if !self.root.join("cgroup.controllers").exists() {
            return Ok(0);
        }
        let (mut changed, mut refused) = (0, None);
        for cgroup in self.top()? {
            let path = cgroup.join("io.max");
            let Some(set) = read(&path)? else {
                continue;
            };
            for (device, limits) in devices {
                let now = set.iter().find(|(number, _)| number == device);
                let now = now.map(|(_, limits)| *limits).unwrap_or_default();
                if now == *limits {
                    continue;
                }
                match write(&path, &format!("{device} {limits}")) {
                    Ok(is_set) => changed += usize::from(is_set),
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
        }
        refused.map_or(Ok(changed), Err)
    }

    /// The devices that are limited in any top cgroup.
    ///
    /// # Errors
    /// [`Kind::Io`].
    pub fn limited(&self) -> Result<BTreeSet<DeviceNumber>> {
        let mut devices = BTreeSet::new();
        for cgroup in self.top()? {
            let set = read(&cgroup.join("io.max"))?.unwrap_or_default();
            devices.extend(set.into_iter().map(|(device, _)| device));
        }
        Ok(devices)
    }

    /// The cgroups directly below the root; none where there is no hierarchy.
    fn top(&self) -> Result<Vec<PathBuf>> {
        let failed = |error| Error::io(format!("could not read {}", self.root.display()), error);
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut top = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                top.push(entry.path());
            }
        }
        top.sort_unstable();
        Ok(top)
    }

    /// Has the top cgroups controlled by the io controller.
    fn enable_io(&self) -> Result<()> {
        let path = self.root.join(CONTROL);
        let enabled = fs::read_to_string(&path)
            .map_err(|error| Error::io(format!("could not read {}", path.display()), error))?;
        if !has_io(&enabled) {
            write(&path, "+io")?;
        }
        Ok(())
    }
}

fn has_io(controllers: &str) -> bool {
    controllers
        .split_ascii_whitespace()
        .any(|name| name == "io")
}

/// The limits in an `io.max`; none if it has gone with its cgroup.
fn read(path: &Path) -> Result<Option<Vec<(DeviceNumber, IoLimits)>>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => {
            return Err(Error::io(
                format!("could not read {}", path.display()),
                error,
            ));
        }
    };
    Ok(Some(text.lines().filter_map(parse_line).collect()))
}

fn parse_line(line: &str) -> Option<(DeviceNumber, IoLimits)> {
    let (device, limits) = line.split_once(' ')?;
    let (major, minor) = device.split_once(':')?;
    let device = DeviceNumber {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    };
    Some((device, IoLimits::parse(limits)))
}

/// Writes one setting; returns false if the cgroup or the device is gone.
fn write(path: &Path, line: &str) -> Result<bool> {
    // Not created: a file of a cgroup is there, or the cgroup is gone.
    let mut file = match fs::OpenOptions::new().write(true).open(path) {
        Ok(file) => file,
        Err(error) if is_gone(&error) => return Ok(false),
        Err(error) => {
            return Err(Error::io(
                format!("could not open {}", path.display()),
                error,
            ));
        }
    };
    match file.write_all(line.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(Error::io(
            format!("could not write {line:?} to {}", path.display()),
            error,
        )),
    }
}

fn is_gone(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOENT | Errno::ENODEV))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(minor: u32) -> DeviceNumber {
        DeviceNumber { major: 254, minor }
    }

    #[test]
    fn limits_are_written_as_the_kernel_shows_them() {
        let text = "rbps=2097152 wbps=max riops=max wiops=120";
        let limits = IoLimits::parse(text);
        assert_eq!(limits.read_bytes, Some(2_097_152));
        assert_eq!(limits.write_iops, Some(120));
        assert_eq!(limits.to_string(), text);
        assert_eq!(
            parse_line(&format!("254:3 {text}")),
            Some((device(3), limits))
        );
        assert_eq!(parse_line("254 rbps=1"), None);
    }

    #[test]
    fn of_two_limits_the_lower_one_holds() {
        let one = IoLimits {
            read_iops: Some(5),
            write_iops: Some(9),
            ..IoLimits::default()
        };
        let other = IoLimits {
            write_iops: Some(3),
            write_bytes: Some(7),
            ..IoLimits::default()
        };
        let both = one.and(&other);
        assert_eq!(both, other.and(&one));
        assert_eq!(both.to_string(), "rbps=max wbps=7 riops=5 wiops=3");
        assert!(!both.is_none() && IoLimits::default().is_none());
    }

    #[test]
    fn a_host_without_cgroup_v2_says_so() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = Cgroups::new(root.path().to_owned());
        let limited = IoLimits {
            read_iops: Some(5),
            ..IoLimits::default()
        };
        assert_eq!(
            cgroups.limit(&[(device(1), IoLimits::default())]).unwrap(),
            0
        );
        let error = cgroups.limit(&[(device(1), limited)]).unwrap_err();
        assert!(error.to_string().contains("no cgroup v2"), "{error}");
        fs::write(root.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        let error = cgroups.check().unwrap_err();
        assert!(error.to_string().contains("no io controller"), "{error}");
        fs::write(root.path().join("cgroup.controllers"), "cpu io\n").unwrap();
        let error = cgroups.check().unwrap_err();
        assert!(error.to_string().contains("no cgroups"), "{error}");
    }
}
