//! The walk over all files of a file system.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, ResolveFlag},
    unistd::{Gid, fchownat},
};

use crate::{
    Error, Kind, Result,
    host::descriptor::{Entries, open_in, path_of},
};

/// Mode bits added to directories: all rights for the group, and set-group-id so that new files belong to it.
const DIRECTORY: u32 = 0o2070;
/// Mode bits added to files: read and write for the group.
const FILE: u32 = 0o060;

/// Gives `group` ownership of, and read and write access to, all files below `root`, except device nodes and other
/// mounts.
///
/// The root is changed last: if it belongs to the group, all other files do too, and a repeated call has nothing to do.
///
/// # Errors
/// `Busy` if a directory was moved during the walk; the repeated call walks again.
pub(crate) fn give(root: &Path, group: u32) -> Result<()> {
    let failed = |error: io::Error| {
        let what = format!(
            "could not change the group of the files below {} to {group}",
            root.display()
        );
        if error.raw_os_error() == Some(libc::ESTALE) {
            let why = "a directory in it was moved at the same time; repeat the call";
            return Error::new(Kind::Busy, format!("{what}: {why}"));
        }
        Error::io(what, error)
    };
    let top = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(root)
        .map_err(failed)?;
    let metadata = top.metadata().map_err(failed)?;
    if metadata.gid() == group && metadata.mode() & DIRECTORY == DIRECTORY {
        return Ok(());
    }
    give_below(&top, group).map_err(failed)?;
    give_one(&top, &metadata, group).map_err(failed)
}

/// A directory above the one that is open.
struct ParentDirectory {
    /// Its `st_dev` and `st_ino`.
    identity: (u64, u64),
    /// The position at which reading continues.
    place: i64,
}

/// Changes all entries below an open directory.
fn give_below(top: &File, group: u32) -> io::Result<()> {
    let mut above = Vec::new();
    let mut at = read_in(top, OsStr::new("."))?;
    let mut entries = Entries::new();
    loop {
        let Some(entry) = entries.next(&at)? else {
            let Some(ParentDirectory { identity, place }) = above.pop() else {
                return Ok(());
            };
            at = read_in(&at, OsStr::new(".."))?;
            if self::identity(&at)? != identity {
                return Err(Errno::ESTALE.into());
            }
            entries.turn_to(&at, place)?;
            continue;
        };
        let Some(file) = open_entry(&at, &entry.name)? else {
            continue;
        };
        let metadata = file.metadata()?;
        give_one(&file, &metadata, group)?;
        if metadata.is_dir() {
            above.push(ParentDirectory {
                identity: identity(&at)?,
                place: entry.next,
            });
            at = read_in(&file, OsStr::new("."))?;
            entries.turn_to(&at, 0)?;
        }
    }
}

/// Opens the entry itself, without following it; none if it was removed meanwhile or a mount covers it.
fn open_entry(directory: &OwnedFd, name: &OsStr) -> io::Result<Option<File>> {
    match open_in(directory, name, OFlag::O_PATH, ResolveFlag::RESOLVE_NO_XDEV) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::ENOENT | Errno::EXDEV) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a directory of the same mount to be read: this one (`.`) or the one above (`..`).
fn read_in(directory: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    Ok(open_in(
        directory,
        name,
        flags,
        ResolveFlag::RESOLVE_NO_XDEV,
    )?)
}

fn identity(directory: &OwnedFd) -> io::Result<(u64, u64)> {
    let status = nix::sys::stat::fstat(directory)?;
    Ok((status.st_dev, status.st_ino))
}

fn give_one(file: &File, metadata: &fs::Metadata, group: u32) -> io::Result<()> {
    let kind = metadata.file_type();
    // A device node refers to a device outside of the volume.
    if kind.is_block_device() || kind.is_char_device() {
        return Ok(());
    }
    fchownat(
        file,
        "",
        None,
        Some(Gid::from_raw(group)),
        AtFlags::AT_EMPTY_PATH,
    )?;
    if kind.is_symlink() {
        return Ok(());
    }
    let bits = if kind.is_dir() { DIRECTORY } else { FILE };
    // Changing the owner clears set-user-id bits, so the mode is set second. The mode of a file opened with O_PATH can
    // only be changed through its link in /proc, which cannot lead to another file.
    let mode = fs::Permissions::from_mode(metadata.mode() & 0o7777 | bits);
    fs::set_permissions(path_of(file), mode)
}
