//! The supported file systems, and probing what is on a device.

use std::{
    fmt,
    fs::File,
    io,
    os::unix::fs::{FileExt, FileTypeExt},
    path::Path,
    str::FromStr,
};

use nix::{
    errno::Errno,
    unistd::{Whence, lseek64},
};

use crate::{Error, Result};
use crate::{
    Probe,
    superblock::{self, HEAD, SHORT_HEAD, TAIL},
    system,
};

/// A file system that a volume can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// xfs.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl FileSystem {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Minimum size of a volume with it, in bytes.
    pub fn minimum_bytes(self) -> u64 {
        match self {
            Self::Ext4 => 1 << 20,
            // xfsprogs 5.19 and later.
            Self::Xfs => 300 << 20,
            // mkfs.btrfs accepts less, but the kernel resizes none to a size below this (fs/btrfs/ioctl.c,
            // btrfs_ioctl_resize).
            Self::Btrfs => 256 << 20,
        }
    }

    /// The program that creates it.
    pub fn maker(self) -> &'static str {
        match self {
            Self::Ext4 => "mkfs.ext4",
            Self::Xfs => "mkfs.xfs",
            Self::Btrfs => "mkfs.btrfs",
        }
    }

    /// The Debian package with its programs.
    pub fn package(self) -> &'static str {
        match self {
            Self::Ext4 => "e2fsprogs",
            Self::Xfs => "xfsprogs",
            Self::Btrfs => "btrfs-progs",
        }
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FileSystem {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "file system `{}` is not one of ext4, xfs, btrfs",
                    text.escape_debug()
                ))
            })
    }
}

/// Determines what is on a block device or in an image file.
///
/// # Errors
/// `Io` when it cannot be read completely: that is never treated as blank.
pub fn probe(path: &Path) -> Result<Probe> {
    read_ends(path).map_err(|error| Error::io(format!("could not read {}", path.display()), error))
}

/// Returns true if an image file has never been written to: it contains no data at all, apart from reserved blocks.
pub fn is_untouched(image: &Path) -> Result<bool> {
    let failed = |error| Error::io(format!("could not read {}", image.display()), error);
    let file = File::open(image).map_err(failed)?;
    match lseek64(&file, 0, Whence::SeekData) {
        Err(Errno::ENXIO) => Ok(true),
        // The file system does not report holes: there may be data.
        Ok(_) | Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(false),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// The size of a block device or file, in bytes.
pub(crate) fn size_of_file(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    if metadata.file_type().is_block_device() {
        system::device_size(file)
    } else {
        Ok(metadata.len())
    }
}

fn read_ends(path: &Path) -> io::Result<Probe> {
    let file = File::open(path)?;
    let size = size_of_file(&file)?;
    let read = |offset: u64, most: usize| -> io::Result<Vec<u8>> {
        let length = usize::try_from(size - offset).unwrap_or(most).min(most);
        let mut buffer = vec![0; length];
        file.read_exact_at(&mut buffer, offset)?;
        Ok(buffer)
    };
    // A volume in use nearly always has one of these, and then nothing more is read.
    let head = read(0, SHORT_HEAD)?;
    if let Some(found) = superblock::early(&head) {
        return Ok(found);
    }
    let tail_length = u64::try_from(TAIL).map_err(io::Error::other)?;
    let tail = read(size.saturating_sub(tail_length), TAIL)?;
    Ok(superblock::probe(&read(0, HEAD)?, &tail))
}
