//! An image that is read.

use std::{
    fs::File,
    io::{self, ErrorKind, Seek, SeekFrom},
    ops::Range,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::sink::{Stop, Walked};
use crate::{
    Access, Error, Kind, Result,
    copy::next_data,
    exclusive::has_no_map,
    open_direct,
    system::{self, Extent},
};

/// A file, or a block device, which is read with direct I/O: its pages would only push others out of the cache.
#[derive(Debug)]
pub(super) struct Image {
    path: PathBuf,
    file: File,
    /// The size when it was opened, in bytes.
    pub(super) size: u64,
    /// The device of its file system.
    pub(super) device: u64,
}

impl Image {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let open = || -> io::Result<Self> {
            let metadata = std::fs::metadata(path)?;
            let mut file = if metadata.file_type().is_block_device() {
                open_direct(path, Access::ReadOnly)?
            } else {
                File::open(path)?
            };
            Ok(Self {
                path: path.to_owned(),
                size: file.seek(SeekFrom::End(0))?,
                device: metadata.dev(),
                file,
            })
        };
        let failed = |error| Error::io(format!("could not open {}", path.display()), error);
        open().map_err(failed)
    }

    /// Fills `buffer` with the bytes from `offset` on.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file
            .read_exact_at(buffer, offset)
            .map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => self.shorter(),
                _ => self.failed("could not read", offset, error),
            })
    }

    /// The first range of data at or after `offset`; none if only a hole is left.
    pub(super) fn data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let data = next_data(&self.file, offset, self.size)
            .map_err(|error| self.failed("could not find the data of", offset, error))?;
        Ok(data.map(|(start, end)| start..end))
    }

    /// The first extents of a range, as the file system maps them; none if it has no such map. `flags` are
    /// `FIEMAP_FLAG_*`.
    pub(super) fn extents(&self, range: Range<u64>, flags: u32) -> Result<Option<Vec<Extent>>> {
        let start = range.start;
        match system::extents(&self.file, range, flags) {
            Ok(extents) => Ok(Some(extents)),
            Err(error) if error.raw_os_error().is_some_and(has_no_map) => Ok(None),
            Err(error) => Err(self.failed("could not read the extents of", start, error)),
        }
    }

    /// Refuses an image that lost bytes: they look like a hole.
    fn check_size(&self) -> Result<()> {
        let size = (&self.file)
            .seek(SeekFrom::End(0))
            .map_err(|error| self.failed("could not find the end of", self.size, error))?;
        if size < self.size {
            return Err(self.shorter());
        }
        Ok(())
    }

    fn shorter(&self) -> Error {
        let path = self.path.display();
        let message = format!(
            "{path} became shorter than {} bytes while it was read",
            self.size
        );
        Error::new(Kind::Io, message)
    }

    fn failed(&self, what: &str, offset: u64, error: io::Error) -> Error {
        let message = format!("{what} {} at byte {offset}", self.path.display());
        Error::io(message, error)
    }
}

/// The result of a search through images.
pub(super) fn finish<const N: usize>(walked: Walked, images: [&Image; N]) -> Result<()> {
    match walked {
        Err(Stop::Failed(error)) => Err(error),
        Ok(()) | Err(Stop::Asked) => images.into_iter().try_for_each(Image::check_size),
    }
}
