//! Preflight checks of this host's LVM, once per process: whether it can be used safely.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use nix::unistd::{AccessFlags, access};
use tokio::sync::OnceCell;

use crate::{
    Error, Kind, Result, blocking_at_once,
    host::{device_mapper::DeviceMapper, udev},
};
use crate::{command, lock_files, stale_cookies};

/// The oldest version of a distribution that is still supported (Debian 11); older ones are untested.
const OLDEST: Version = Version(2, 3, 11);
/// The versions that the tests run with.
const TESTED: [Version; 2] = [Version(2, 3, 16), Version(2, 3, 31)];

/// A version of LVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}.{:02}", self.0, self.1, self.2)
    }
}

impl Version {
    /// Parses the output of `lvm version`: `LVM version:     2.03.16(2) (2022-05-18)`.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.trim().strip_prefix("LVM version:"))?;
        let is_part = |character: char| character.is_ascii_digit() || character == '.';
        let end = line.trim().find(|character| !is_part(character));
        let (numbers, _) = line
            .trim()
            .split_at_checked(end.unwrap_or(line.trim().len()))?;
        let mut numbers = numbers.split('.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Self(next()?, next()?, next()?))
    }
}

/// Makes sure that LVM can be used; repeated until it succeeds once. Runs two programs.
///
/// # Errors
/// [`Kind::Precondition`] saying what is missing, and how to fix it.
pub async fn check() -> Result<()> {
    static CHECKED: OnceCell<()> = OnceCell::const_new();
    let checked = CHECKED.get_or_try_init(|| async {
        let mapper = DeviceMapper::open()?;
        let output = command::version().await?;
        check_version(&String::from_utf8_lossy(&output.stdout))?;
        let locks = parse_locks(&command::setting("global/locking_dir").await?)?;
        check_locks(&locks)?;
        lock_files::found(locks);
        if udev::is_running() {
            blocking_at_once(move || udev::check_answers(&mapper)).await?;
            stale_cookies::watch();
        }
        Ok(())
    });
    checked.await.copied()
}

/// The numbers of the version in the output of `lvm version`.
pub fn version(text: &str) -> Option<(u32, u32, u32)> {
    Version::parse(text).map(|Version(major, minor, patch)| (major, minor, patch))
}

/// The version in the output of `lvm version`, if the tests do not run with it.
pub fn untested(text: &str) -> Option<String> {
    let version = Version::parse(text)?;
    (!TESTED.contains(&version)).then(|| version.to_string())
}

/// Checks the version in the output of `lvm version`.
///
/// # Errors
/// [`Kind::Precondition`] if it is too old, or none.
pub fn check_version(text: &str) -> Result<()> {
    let refused = |why: String| Err(Error::new(Kind::Precondition, why));
    match Version::parse(text) {
        Some(version) if version >= OLDEST => Ok(()),
        Some(version) => refused(format!(
            "lvm is {version}, and must be {OLDEST} or newer; update lvm2"
        )),
        None => refused(
            "could not find the version in the output of `lvm version`; install lvm2".to_owned(),
        ),
    }
}

/// Parses the output of `lvmconfig`: `locking_dir="/run/lock/lvm"`.
fn parse_locks(text: &str) -> Result<PathBuf> {
    let path = text
        .strip_prefix("locking_dir=\"")
        .and_then(|rest| rest.strip_suffix('"'));
    let path = path.filter(|path| path.starts_with('/') && !path.contains(['"', '\\']));
    path.map(PathBuf::from).ok_or_else(|| {
        Error::new(
            Kind::Precondition,
            format!("LVM's locking directory {text:?}, as printed by `lvmconfig`, is not an absolute path; correct global/locking_dir in lvm.conf"),
        )
    })
}

/// Without the lock directory of the host's LVM, both could change a group at the same time, and one change would be
/// lost.
fn check_locks(locks: &Path) -> Result<()> {
    let made = fs::create_dir_all(locks);
    let written = made.and_then(|()| Ok(access(locks, AccessFlags::W_OK)?));
    written.map_err(|error| {
        Error::new(
            Kind::Precondition,
            format!(
                "LVM's locking directory {} is not writable, so concurrent changes by other processes could not be prevented; mount the host's directory into the container",
                locks.display()
            ),
        )
        .because(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_too_old_or_none_is_refused() {
        let of = |version: &str| {
            format!("  LVM version:     {version}\n  Library version: 1.02.185 (2022-05-18)\n")
        };
        for fine in [
            "2.03.16(2) (2022-05-18)",
            "2.03.11(2)",
            "2.04.0",
            "3.0.0-git",
        ] {
            check_version(&of(fine)).unwrap();
        }
        for old in ["2.03.10(2) (2020-08-09)", "2.02.188(2)"] {
            let error = check_version(&of(old)).unwrap_err();
            assert_eq!(error.kind(), Kind::Precondition);
            assert!(error.to_string().contains("2.03.11 or newer"), "{error}");
        }
        check_version("usage: lvm").unwrap_err();
    }

    #[test]
    fn where_the_locks_are_is_an_absolute_path() {
        let path = parse_locks("locking_dir=\"/run/lock/lvm\"").unwrap();
        assert_eq!(path, Path::new("/run/lock/lvm"));
        for wrong in [
            "",
            "locking_dir=\"\"",
            "\"/run\"",
            "locking_dir=\"run\"",
            "locking_dir=\"/a\"\n\"",
        ] {
            let error = parse_locks(wrong).unwrap_err();
            assert_eq!(error.kind(), Kind::Precondition, "{wrong}");
        }
    }

    #[test]
    fn locks_that_cannot_be_written_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        check_locks(&scratch.path().join("a/b")).unwrap();
        // A directory where even root cannot write.
        let error = check_locks(Path::new("/proc/lvm")).unwrap_err();
        assert_eq!(error.kind(), Kind::Precondition);
    }
}
