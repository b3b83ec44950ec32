//! Target paths of publications: made before, removed after.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt},
    path::Path,
};

use crate::{Error, Kind, Result};

/// What becomes of a target when nothing is published there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emptied {
    /// It goes.
    Removed,
    /// It stays: the caller has made it.
    Left,
}

/// Makes the directory that a file system is to be published at, or finds it empty.
/// Says whether it was made.
pub(super) fn make_directory(target: &Path) -> Result<bool> {
    match DirBuilder::new().mode(0o755).create(target) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let metadata = fs::symlink_metadata(target).map_err(|error| failed(target, error))?;
            if !metadata.is_dir() {
                return Err(wrong(target, "is not a directory"));
            }
            let mut entries = fs::read_dir(target).map_err(|error| failed(target, error))?;
            if entries.next().is_some() {
                return Err(wrong(target, "is not empty; what is in it would be hidden"));
            }
            Ok(false)
        }
        Err(error) => Err(parent(target, error)),
    }
}

/// Makes the file that a block device is to be published at, or finds it empty.
/// Says whether it was made.
pub(super) fn make_file(target: &Path) -> Result<bool> {
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(target);
    match made {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let metadata = fs::symlink_metadata(target).map_err(|error| failed(target, error))?;
            if !metadata.is_file() || metadata.len() > 0 {
                return Err(wrong(target, "is not an empty file"));
            }
            Ok(false)
        }
        Err(error) => Err(parent(target, error)),
    }
}

/// Removes what a publication stood on. What has something in it is not ours and stays.
pub(super) fn remove(target: &Path) -> Result<()> {
    let metadata = match fs::symlink_metadata(target) {
        Ok(metadata) => metadata,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(());
        }
        Err(error) => return Err(failed(target, error)),
    };
    let removed = if metadata.is_dir() {
        fs::remove_dir(target)
    } else if metadata.is_file() && metadata.len() == 0 {
        fs::remove_file(target)
    } else if metadata.file_type().is_block_device() || metadata.is_file() || metadata.is_symlink()
    {
        return Err(wrong(
            target,
            "is not a publication of ours; nothing was removed",
        ));
    } else {
        return Err(wrong(
            target,
            "is neither a directory nor a file; nothing was removed",
        ));
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            Err(wrong(target, "is not empty; nothing was removed"))
        }
        other => other.map_err(|error| failed(target, error)),
    }
}

fn wrong(target: &Path, what: &str) -> Error {
    Error::new(
        Kind::Precondition,
        format!("target_path {} {what}", target.display()),
    )
}

fn failed(target: &Path, error: io::Error) -> Error {
    Error::io(
        format!("could not use target_path {}", target.display()),
        error,
    )
}

fn parent(target: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => wrong(target, "has no parent directory; make that first"),
        io::ErrorKind::NotADirectory => {
            wrong(target, "goes through something that is not a directory")
        }
        _ => failed(target, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_already_is_neither_hidden_nor_removed() {
        let directory = tempfile::tempdir().unwrap();
        let full = directory.path().join("full");
        fs::create_dir(&full).unwrap();
        fs::write(full.join("precious"), "x").unwrap();
        for error in [
            make_directory(&full).unwrap_err(),
            make_file(&full).unwrap_err(),
            make_directory(&full.join("precious")).unwrap_err(),
            make_file(&full.join("precious")).unwrap_err(),
            remove(&full).unwrap_err(),
            remove(&full.join("precious")).unwrap_err(),
            make_directory(&directory.path().join("no/parent")).unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Precondition, "{error}");
        }
        assert_eq!(fs::read_to_string(full.join("precious")).unwrap(), "x");
    }

    #[test]
    fn a_target_is_made_once_and_removed_once() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        assert!(make_directory(&target).unwrap());
        assert!(!make_directory(&target).unwrap());
        remove(&target).unwrap();
        remove(&target).unwrap();
        assert!(make_file(&target).unwrap());
        assert!(!make_file(&target).unwrap());
        remove(&target).unwrap();
        assert!(!target.exists());
    }
}
