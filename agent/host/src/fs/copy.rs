//! Copies of whole files: shared blocks, sparse, or with every block reserved.

use std::{fs::File, io, os::fd::AsFd, os::unix::fs::FileExt, path::Path};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, copy_file_range, fallocate},
    unistd::{Whence, lseek64},
};

use crate::system;
use crate::{Error, Result, trace};

/// Bytes per step of a copy: large enough to be fast, small enough for regular progress.
const STEP: u64 = 64 << 20;
/// Buffer size of a copy through memory.
const BUFFER: usize = 1 << 20;

/// Whether a file system shares blocks between files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reflink {
    /// The target shares the blocks of its source.
    Done,
    /// The file system does not support it; the target is unchanged.
    Unsupported,
}

/// Makes the whole of `target`, an empty file, share the blocks of `source`.
pub fn reflink(source: &File, target: &File) -> Result<Reflink> {
    match system::reflink(source, target) {
        Ok(()) => Ok(Reflink::Done),
        Err(error) => match error.raw_os_error() {
            // EINVAL is what file systems with other block sizes, and some old ones, return if they do not support
            // it.
            Some(libc::EOPNOTSUPP | libc::EXDEV | libc::ENOTTY | libc::EINVAL) => {
                Ok(Reflink::Unsupported)
            }
            _ => Err(Error::io("could not share the blocks of an image", error)),
        },
    }
}

/// Returns true if files in `directory` can share blocks, tested with two unnamed files.
pub fn supports_reflink(directory: &Path) -> Result<bool> {
    let failed = |error: io::Error| {
        Error::io(
            format!(
                "could not create a temporary file in {}",
                directory.display()
            ),
            error,
        )
    };
    let source = unnamed_file(directory).map_err(failed)?;
    let target = unnamed_file(directory).map_err(failed)?;
    source.write_all_at(&[1; 4096], 0).map_err(failed)?;
    Ok(reflink(&source, &target)? == Reflink::Done)
}

/// Copies the data of `source` into `target`, an empty file; holes stay holes.
///
/// `progress` gets the number of bytes copied since its last call, and can abort the copy with an error.
pub fn sparse_copy(
    source: &File,
    target: &File,
    mut progress: impl FnMut(u64) -> io::Result<()>,
) -> Result<()> {
    let _span = trace::copy();
    let mut copy = || -> io::Result<()> {
        let size = source.metadata()?.len();
        target.set_len(size)?;
        let mut position = 0;
        while let Some((start, end)) = next_data(source, position, size)? {
            copy_range(source, target, (start, end), &mut progress)?;
            position = end;
        }
        Ok(())
    };
    copy().map_err(|error| Error::io("could not copy an image", error))
}

/// Copies `source` into `target`, an empty file, with every block of `size` bytes reserved and none shared.
pub fn full_copy(
    source: &File,
    target: &File,
    size: u64,
    mut progress: impl FnMut(u64) -> io::Result<()>,
) -> Result<()> {
    let _span = trace::copy();
    let mut copy = || -> io::Result<()> {
        reserve(target, size)?;
        let length = source.metadata()?.len().min(size);
        let mut position = 0;
        let mut buffer = vec![0; BUFFER];
        while let Some((start, end)) = next_data(source, position, length)? {
            // Through memory: copy_file_range would share the blocks where the file system can.
            copy_through(source, target, (start, end), &mut buffer, &mut progress)?;
            position = end;
        }
        Ok(())
    };
    copy().map_err(|error| Error::io("could not copy an image", error))
}

/// Makes `file` `size` bytes large and reserves every block of it; its contents are kept.
///
/// # Errors
/// `NoSpace` when there is no room. Where the file system cannot reserve, `Precondition`.
pub fn preallocate(file: &File, size: u64) -> Result<()> {
    reserve(file, size).map_err(|error| {
        if error.raw_os_error() == Some(libc::EOPNOTSUPP) {
            return Error::new(
                crate::Kind::Precondition,
                "the file system of the class cannot reserve blocks; use a different file system, or thin allocation",
            );
        }
        Error::io("could not reserve the blocks of an image", error)
    })
}

fn reserve(file: &File, size: u64) -> io::Result<()> {
    if size == 0 {
        return Ok(());
    }
    let length = i64::try_from(size).map_err(|_| io::Error::from(Errno::EFBIG))?;
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, length) {
            Err(Errno::EINTR) => {}
            other => return Ok(other?),
        }
    }
}

/// A file in `directory` that is removed when it is closed.
fn unnamed_file(directory: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(directory)
}

/// The first range of data at or after `position`, before `size`.
pub(crate) fn next_data(file: &File, position: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if position >= size {
        return Ok(None);
    }
    let start = match seek(file, position, Whence::SeekData) {
        Ok(start) => start,
        // Only a hole is left.
        Err(Errno::ENXIO) => return Ok(None),
        // The file system does not report holes: all is data.
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok(Some((position, size))),
        Err(errno) => return Err(errno.into()),
    };
    if start >= size {
        return Ok(None);
    }
    let end = seek(file, start, Whence::SeekHole)?.min(size);
    Ok(Some((start, end)))
}

fn seek(file: &File, position: u64, whence: Whence) -> nix::Result<u64> {
    let position = i64::try_from(position).map_err(|_| Errno::EOVERFLOW)?;
    let found = lseek64(file, position, whence)?;
    u64::try_from(found).map_err(|_| Errno::EOVERFLOW)
}

/// Copies a range inside the kernel, or through memory where the kernel cannot.
fn copy_range(
    source: &File,
    target: &File,
    (start, end): (u64, u64),
    progress: &mut impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut position = start;
    while position < end {
        let length = usize::try_from((end - position).min(STEP)).unwrap_or(BUFFER);
        let mut from = i64::try_from(position).map_err(io::Error::other)?;
        let mut to = from;
        let copied = match copy_file_range(
            source.as_fd(),
            Some(&mut from),
            target.as_fd(),
            Some(&mut to),
            length,
        ) {
            // Nothing copied: some kernels return that for files that they cannot copy.
            Ok(0) | Err(Errno::EXDEV | Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS) => 0,
            Ok(copied) => u64::try_from(copied).map_err(io::Error::other)?,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        if copied == 0 {
            return copy_through(
                source,
                target,
                (position, end),
                &mut vec![0; BUFFER],
                progress,
            );
        }
        position += copied;
        progress(copied)?;
    }
    Ok(())
}

/// Copies a range through memory; a source that ends early leaves a hole.
fn copy_through(
    source: &File,
    target: &File,
    (start, end): (u64, u64),
    buffer: &mut [u8],
    progress: &mut impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut position = start;
    while position < end {
        let length = usize::try_from(end - position)
            .unwrap_or(buffer.len())
            .min(buffer.len());
        let Some(part) = buffer.get_mut(..length) else {
            break;
        };
        let read = match source.read_at(part, position) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        target.write_all_at(part.get(..read).unwrap_or_default(), position)?;
        let read = u64::try_from(read).map_err(io::Error::other)?;
        position += read;
        progress(read)?;
    }
    Ok(())
}
