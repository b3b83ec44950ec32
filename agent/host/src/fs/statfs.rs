//! The capacity of a mounted file system.

use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::{Error, Result};

/// The capacity of a mounted file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// The size of its blocks, in bytes.
    pub block_size: u64,
    /// Its size, in bytes.
    pub total: u64,
    /// The bytes that an unprivileged user can still write.
    pub available: u64,
    /// The bytes in use, without those reserved for root.
    pub used: u64,
    /// The maximum number of inodes; 0 where they are allocated dynamically.
    pub inodes: u64,
    /// The number of free inodes.
    pub free_inodes: u64,
    /// True if it is read-only.
    pub is_read_only: bool,
}

impl Disk {
    /// The capacity of the file system that contains `path`.
    pub fn of(path: &Path) -> Result<Self> {
        let found = loop {
            match statvfs(path) {
                Err(nix::errno::Errno::EINTR) => {}
                other => break other,
            }
        };
        let found = found.map_err(|error| {
            Error::io(
                format!(
                    "could not get the free space of the file system at {}",
                    path.display()
                ),
                error,
            )
        })?;
        let block_size = found.fragment_size();
        let bytes = |blocks: u64| blocks.saturating_mul(block_size);
        Ok(Self {
            block_size,
            total: bytes(found.blocks()),
            available: bytes(found.blocks_available()),
            used: bytes(found.blocks().saturating_sub(found.blocks_free())),
            inodes: found.files(),
            free_inodes: found.files_free(),
            is_read_only: found.flags().contains(FsFlags::ST_RDONLY),
        })
    }
}
