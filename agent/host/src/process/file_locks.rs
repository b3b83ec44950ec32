//! Who holds a lock on a file: read from the kernel's list, without trying the lock.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// The kernel's list of locks.
const LOCKS: &str = "/proc/locks";

/// The process that holds a `flock` on the file at `path`; none if nobody does, or there is no such file. The process id
/// is 0 if the process is in another container.
///
/// # Errors
/// `Io` when the file or the list cannot be read, or a process may have the lock and its open files cannot be read: for
/// that one must be root, with the capabilities of the process.
pub fn holder(path: &Path) -> Result<Option<u32>> {
    let failed = |error| Error::io(format!("could not stat {}", path.display()), error);
    let inode = match fs::metadata(path) {
        Ok(file) => file.ino(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let text = fs::read_to_string(LOCKS)
        .map_err(|error| Error::io(format!("could not read {LOCKS}"), error))?;
    let holders = holders_of(&text, inode).into_iter();
    let (seen, hidden): (Vec<u32>, Vec<u32>) = holders.partition(|pid| *pid != 0);
    // The list names an inode by a device that is not always `st_dev` (btrfs): the open file decides.
    let found = seen.iter().copied().find(|pid| has_open(*pid, path));
    if let Some(pid) = found.or_else(|| hidden.first().copied()) {
        return Ok(Some(pid));
    }
    match seen.into_iter().find_map(unreadable) {
        Some(error) => Err(error),
        None => Ok(None),
    }
}

/// Why the open files of a process cannot be read; none if they can, or it has ended. Without its capabilities their numbers
/// can be listed, and not what they lead to.
fn unreadable(pid: u32) -> Option<Error> {
    let files = format!("/proc/{pid}/fd");
    let look = || -> io::Result<()> {
        for entry in fs::read_dir(&files)? {
            match fs::read_link(entry?.path()) {
                // It was closed meanwhile.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    };
    let error = look().err()?;
    (error.kind() != io::ErrorKind::NotFound)
        .then(|| Error::io(format!("could not read the links in {files}"), error))
}

/// The processes that hold a `flock` on an inode of this number, on whatever device.
fn holders_of(text: &str, inode: u64) -> Vec<u32> {
    let held = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        // "1: FLOCK  ADVISORY  WRITE 1234 00:2a:131 0 EOF"; one that waits has an arrow before its kind.
        (words.next() == Some("FLOCK")).then_some(())?;
        let pid: i64 = words.nth(2)?.parse().ok()?;
        let file = words.next()?.rsplit(':').next()?;
        (file.parse() == Ok(inode)).then(|| u32::try_from(pid).unwrap_or(0))
    });
    held.collect()
}

/// The open files of a process, as links that lead to them.
fn open_files(pid: u32) -> impl Iterator<Item = PathBuf> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter();
    files.flatten().flatten().map(|entry| entry.path())
}

/// Returns true if a process has the file at `path` open.
pub fn has_open(pid: u32, path: &Path) -> bool {
    let Ok(wanted) = fs::metadata(path) else {
        return false;
    };
    open_files(pid).any(|link| {
        // A name first: a dead file system must not be asked.
        fs::read_link(&link).is_ok_and(|name| name.file_name() == path.file_name())
            && fs::metadata(&link)
                .is_ok_and(|file| (file.dev(), file.ino()) == (wanted.dev(), wanted.ino()))
    })
}

/// Returns true if a process has another file open than the one that is at `path` now, and knows it by that name.
pub fn has_open_before(pid: u32, path: &Path) -> bool {
    let Ok(now) = fs::metadata(path) else {
        return false;
    };
    open_files(pid).any(|link| {
        fs::read_link(&link).is_ok_and(|name| name == path)
            && fs::metadata(&link)
                .is_ok_and(|file| (file.dev(), file.ino()) != (now.dev(), now.ino()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use nix::fcntl::{Flock, FlockArg};

    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found_without_trying_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("LOCK");
        assert_eq!(holder(&path).unwrap(), None);
        let file = File::create(&path).unwrap();
        assert_eq!(holder(&path).unwrap(), None);
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        assert_eq!(holder(&path).unwrap(), Some(std::process::id()));
        drop(lock);
        assert_eq!(holder(&path).unwrap(), None);
    }

    #[test]
    fn waiting_locks_and_those_of_other_kinds_are_left_out() {
        let text = "1: FLOCK  ADVISORY  WRITE 12 00:2a:131 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 13 00:2a:131 0 EOF\n2: POSIX  ADVISORY  WRITE 14 00:2a:131 0 EOF\n3: FLOCK  ADVISORY  READ -1 fe:00:131 0 EOF\n";
        assert_eq!(holders_of(text, 131), [12, 0]);
        assert_eq!(holders_of(text, 13), [0; 0]);
    }

    #[test]
    fn a_directory_that_was_replaced_while_it_is_open_is_told_from_the_one_there_now() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("here");
        fs::create_dir(&path).unwrap();
        let opened = File::open(&path).unwrap();
        let pid = std::process::id();
        assert!(has_open(pid, &path) && !has_open_before(pid, &path));
        // A mount over it does not rename it; a rename would show in its link.
        drop(opened);
        assert!(!has_open(pid, &path));
    }
}
