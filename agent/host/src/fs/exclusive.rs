//! The blocks of a file that no other file has.

use std::{fs::File, os::unix::fs::MetadataExt, path::Path};

use crate::{
    Error, Result,
    system::{self, EXTENTS, FIEMAP_EXTENT_SHARED, FIEMAP_FLAG_SYNC},
};

/// The bytes on its disk that a file shares with no other one: what comes free when it is deleted.
///
/// # Errors
/// `Io`.
pub fn exclusive_bytes(path: &Path) -> Result<u64> {
    let failed = |error| {
        let message = format!("could not find the blocks of {}", path.display());
        Error::io(message, error)
    };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let (mut at, mut bytes) = (0, 0_u64);
    loop {
        let extents = match system::extents(&file, at..metadata.len(), FIEMAP_FLAG_SYNC) {
            Ok(extents) => extents,
            // A file system without such a map has no files that share blocks.
            Err(error) if error.raw_os_error().is_some_and(has_no_map) => {
                return Ok(metadata.blocks() * 512);
            }
            Err(error) => return Err(failed(error)),
        };
        for extent in &extents {
            if extent.flags & FIEMAP_EXTENT_SHARED == 0 {
                bytes = bytes.saturating_add(extent.length);
            }
        }
        match extents.last() {
            Some(last) if extents.len() == EXTENTS => {
                at = last.logical.saturating_add(last.length);
            }
            _ => return Ok(bytes.min(metadata.blocks() * 512)),
        }
    }
}

/// Returns true for the error of a file system that has no map of extents, or does not know the flags (EBADR).
pub(crate) fn has_no_map(error: i32) -> bool {
    matches!(
        error,
        libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL | libc::EBADR
    )
}
