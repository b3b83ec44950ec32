//! Writing cached data to the disk, each call a span of the trace.

use std::{fs::File, io, os::fd::AsFd};

use crate::trace;

/// Writes the data and metadata of a file, directory or device to the disk (`fsync(2)`).
pub fn fsync(file: &File) -> io::Result<()> {
    let _span = trace::fsync();
    file.sync_all()
}

/// Writes the data of a file to the disk, and the metadata that is needed to read it (`fdatasync(2)`).
pub fn fdatasync(file: &File) -> io::Result<()> {
    let _span = trace::fdatasync();
    file.sync_data()
}

/// Writes everything of the file system of an open file to the disk (`syncfs(2)`).
pub(crate) fn syncfs(file: impl AsFd) -> io::Result<()> {
    let _span = trace::syncfs();
    nix::unistd::syncfs(file).map_err(io::Error::from)
}
