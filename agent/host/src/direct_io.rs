//! Input and output past the page cache.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Bytes that begin where direct reads and writes want them.
#[derive(Debug)]
pub struct DirectBuffer {
    memory: Vec<u8>,
    skip: usize,
    length: usize,
}

impl DirectBuffer {
    /// Direct reads and writes begin and end at multiples of this, in memory and on the disk.
    pub const BLOCK: usize = 4096;

    /// So many bytes, all zero.
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

/// Opens a device so.
pub fn open_direct(path: &Path, writable: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(writable)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
        .open(path)
}
