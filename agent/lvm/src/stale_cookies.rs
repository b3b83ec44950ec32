//! Removes stale udev cookies that killed programs have left: their number on a host is limited.
//!
//! A program whose cookie is removed while it waits treats that as the reply (`EIDRM`). A program that makes further
//! changes with a removed cookie fails, and leaves devices suspended: only LVM's programs do that, and each of them
//! has its group locked from before it creates a cookie until it has removed it (`unlock_vg` of locking.h). So a
//! cookie is stale when it has not changed for long, no process waits for it, and no LVM program has a group locked.
//! The lock also covers dmeventd, which runs LVM's commands itself, and programs that are not visible from a
//! container, because the lock directory is the host's.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Once,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use crate::lock_files;
use crate::{Error, Result, blocking, fail, host::udev_cookies::Cookie};

/// Age from which an unchanged cookie is stale. Uses other than LVM's take less: udevd ends an event after three
/// minutes, and a script that has created one with `dmsetup udevcreatecookie` uses it only until its next `dmsetup`.
/// LVM's own tests use the same age.
const LEFT: Duration = Duration::from_mins(10);

/// Searches periodically, for the lifetime of this process.
pub(crate) fn watch() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        tokio::spawn(async {
            let mut before = Vec::new();
            loop {
                let seen = std::mem::take(&mut before);
                match blocking(move || look(&seen)).await {
                    Ok(now) => before = now,
                    Err(error) => {
                        tracing::warn!(error = %error.chain(), "could not search for stale udev cookies");
                    }
                }
                // Measured with a monotonic clock, which the times of a semaphore are not.
                tokio::time::sleep(fail::time_lapse(LEFT)).await;
            }
        });
    });
}

/// Removes the cookies that are unchanged since `before`; returns the current ones.
fn look(before: &[Cookie]) -> Result<Vec<Cookie>> {
    let now = Cookie::all()?;
    let (idle, mut others): (Vec<_>, Vec<_>) =
        now.into_iter().partition(|cookie| cookie.is_idle(before));
    if idle.is_empty() {
        return Ok(others);
    }
    if is_any_locked(lock_files::directory()?)? {
        others.extend(idle);
        return Ok(others);
    }
    for cookie in idle {
        cookie.remove()?;
    }
    Ok(others)
}

/// Returns true if an LVM program has a volume group locked, to change it or to activate something in it.
fn is_any_locked(directory: &Path) -> Result<bool> {
    let failed = |path: &Path, error: io::Error| {
        Error::io(format!("could not stat {}", path.display()), error)
    };
    let entries = fs::read_dir(directory).map_err(|error| failed(directory, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(directory, error))?;
        let is_group = entry.file_name().as_encoded_bytes().starts_with(b"V_");
        let path = entry.path();
        if is_group && is_locked(&path).map_err(|error| failed(&path, error))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_locked(path: &PathBuf) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        // LVM removes the file when it is done.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    // Activations take a shared lock. This one is released at once: LVM waits for it.
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => Ok(false),
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, error)) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_a_program_has_locked_is_seen() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let lock = |name: &str, how| Flock::lock(File::create(at(name)).unwrap(), how).unwrap();
        let is_locked = || is_any_locked(scratch.path()).unwrap();
        File::create(at("V_free")).unwrap();
        let _other = lock("P_global", FlockArg::LockExclusive);
        assert!(!is_locked());
        for how in [FlockArg::LockShared, FlockArg::LockExclusive] {
            let held = lock("V_vg", how);
            assert!(is_locked(), "{how:?}");
            drop(held);
            assert!(!is_locked());
        }
        is_any_locked(&at("none")).unwrap_err();
    }
}
