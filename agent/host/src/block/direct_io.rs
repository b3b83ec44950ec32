//! Direct I/O.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use crate::Access;

/// A buffer aligned for direct I/O.
#[derive(Debug)]
pub struct DirectBuffer {
    memory: Vec<u8>,
    skip: usize,
    length: usize,
}

impl DirectBuffer {
    /// Alignment of direct I/O, in memory and on the disk.
    pub const BLOCK: usize = 4096;

    /// A zeroed buffer of this length.
    pub fn new(length: usize) -> Self {
        let memory = vec![0; length + Self::BLOCK];
        let skip = memory.as_ptr().align_offset(Self::BLOCK).min(Self::BLOCK);
        Self {
            memory,
            skip,
            length,
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        let all = self.skip..self.skip + self.length;
        self.memory.get(all).unwrap_or_default()
    }

    /// The bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let all = self.skip..self.skip + self.length;
        self.memory.get_mut(all).unwrap_or_default()
    }
}

/// Opens a device for direct I/O.
///
/// # Errors
/// Those of `open`.
pub fn open_direct(path: &Path, access: Access) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(access == Access::ReadWrite)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
        .open(path)
}
