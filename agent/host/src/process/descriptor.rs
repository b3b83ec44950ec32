//! File access by open descriptors, one path component at a time, so that concurrent renames and links cannot
//! redirect it.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    unistd::{Whence, lseek},
};

use crate::system;

/// Bytes of entries per read; the longest entry takes 280.
const ENTRIES_BYTES: usize = 8 << 10;

/// Opens an entry of an open directory; a symbolic link itself is opened, not followed.
pub fn open_in(
    directory: impl AsFd,
    name: &OsStr,
    flags: OFlag,
    resolve: ResolveFlag,
) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(resolve | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    loop {
        match openat2(directory.as_fd(), name, how) {
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            other => return other,
        }
    }
}

/// A path, valid in this process only, to what a descriptor has open.
pub fn path_of(descriptor: impl AsFd) -> PathBuf {
    let number = descriptor.as_fd().as_raw_fd();
    PathBuf::from(format!("/proc/self/fd/{number}"))
}

/// The id of the mount that a descriptor is on.
pub fn mount_id(descriptor: impl AsFd) -> io::Result<u64> {
    let number = descriptor.as_fd().as_raw_fd();
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let mut lines = text.lines();
    let id = lines.find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// An entry of a directory.
#[derive(Debug)]
pub struct Entry {
    /// The name.
    pub name: OsString,
    /// The offset at which reading continues after it, also through another descriptor of the directory.
    pub next: i64,
}

/// Reads the entries of an open directory, from the current offset of its descriptor.
#[derive(Debug)]
pub struct Entries {
    buffer: Vec<u8>,
    unread: std::ops::Range<usize>,
}

impl Entries {
    /// A reader that has read no entries yet.
    #[expect(
        clippy::new_without_default,
        reason = "it allocates a buffer, which the caller should see"
    )]
    pub fn new() -> Self {
        Self {
            buffer: vec![0; ENTRIES_BYTES],
            unread: 0..0,
        }
    }

    /// Continues in another directory, at the offset of an entry of it, or at its beginning (0).
    pub fn turn_to(&mut self, directory: impl AsFd, place: i64) -> io::Result<()> {
        self.unread = 0..0;
        lseek(directory, place, Whence::SeekSet)?;
        Ok(())
    }

    /// The next entry except `.` and `..`, if any.
    pub fn next(&mut self, directory: impl AsFd) -> io::Result<Option<Entry>> {
        loop {
            if self.unread.is_empty() {
                let filled = system::read_entries(&directory, &mut self.buffer)?;
                if filled == 0 {
                    return Ok(None);
                }
                self.unread = 0..filled;
            }
            let unread = self.buffer.get(self.unread.clone()).unwrap_or_default();
            let (entry, length) = parse(unread).ok_or(io::ErrorKind::InvalidData)?;
            self.unread.start += length;
            if entry.name != "." && entry.name != ".." {
                return Ok(Some(entry));
            }
        }
    }
}

/// Parses the first `struct linux_dirent64`; returns it with its length.
fn parse(bytes: &[u8]) -> Option<(Entry, usize)> {
    let next = bytes.get(8..16)?.try_into().ok()?;
    let length = bytes.get(16..18)?.try_into().ok()?;
    let length = usize::from(u16::from_ne_bytes(length));
    let name = bytes.get(19..length)?.split(|byte| *byte == 0).next()?;
    let entry = Entry {
        name: OsStr::from_bytes(name).to_owned(),
        next: i64::from_ne_bytes(next),
    };
    Some((entry, length))
}
