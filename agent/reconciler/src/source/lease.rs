//! Whether somebody has a file open for writing.
#![expect(unsafe_code, reason = "no library wraps F_SETLEASE")]

use std::{fs::File, io, os::fd::AsRawFd};

/// What a look at a file's writers found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writers {
    /// Nobody has it open for writing.
    None,
    /// Somebody has.
    Some,
    /// The file system cannot tell.
    Unknown,
}

/// Asks for a read lease, which the kernel refuses while there are writers, and gives it back at once.
pub(super) fn writers(file: &File) -> Writers {
    match set_lease(file, libc::F_RDLCK) {
        Ok(()) => {
            let _ = set_lease(file, libc::F_UNLCK);
            Writers::None
        }
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN) => Writers::Some,
            _ => Writers::Unknown,
        },
    }
}

fn set_lease(file: &File, lease: libc::c_int) -> io::Result<()> {
    // SAFETY: fcntl(F_SETLEASE) takes an open descriptor, which `file` is, and a number; it touches no memory of ours.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, lease) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn a_file_that_is_open_for_writing_is_told_from_one_that_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let file = File::open(&path).unwrap();
        assert_ne!(writers(&file), Writers::Some);
        let writer = OpenOptions::new().append(true).open(&path).unwrap();
        assert_ne!(writers(&file), Writers::None);
        drop(writer);
        assert_ne!(writers(&file), Writers::Some);
    }
}
