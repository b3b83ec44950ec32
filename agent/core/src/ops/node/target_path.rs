//! Target paths of publications: created before, removed after.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::{
    Error, Kind, Result,
    host::{Access, Mount, PathBeneath, Restrictions, mount},
    types::{AbsolutePath, RootPath},
};

/// The target path of a publication.
#[derive(Debug, Clone)]
pub struct Target {
    /// The path.
    pub path: AbsolutePath,
    /// The directory below which no symbolic link of the path is followed. Without it all links are followed.
    pub root: Option<RootPath>,
}

impl From<AbsolutePath> for Target {
    fn from(path: AbsolutePath) -> Self {
        Self { path, root: None }
    }
}

/// A resolved target.
#[derive(Debug)]
pub(crate) enum TargetLocation {
    /// Reached by its path; symbolic links are followed.
    Path(PathBuf),
    /// Reached beneath its root only.
    Beneath(PathBeneath),
}

impl Target {
    /// Resolves the target, if all directories above it exist.
    ///
    /// # Errors
    /// `Invalid` if a symbolic link leads out of the root.
    pub(crate) fn find(&self) -> Result<Option<TargetLocation>> {
        match &self.root {
            None => Ok(Some(TargetLocation::of(&self.path))),
            Some(root) => Ok(PathBeneath::find(root, &self.path)?.map(TargetLocation::Beneath)),
        }
    }

    /// Like [`Target::find`], but creates missing directories between the root and the target.
    ///
    /// # Errors
    /// As those of [`Target::find`].
    pub(crate) fn make(&self) -> Result<TargetLocation> {
        match &self.root {
            None => Ok(TargetLocation::of(&self.path)),
            Some(root) => PathBeneath::make(root, &self.path).map(TargetLocation::Beneath),
        }
    }
}

impl TargetLocation {
    /// The target at a path, with symbolic links followed.
    pub(crate) fn of(path: &Path) -> Self {
        Self::Path(path.to_owned())
    }

    fn shown(&self) -> &Path {
        match self {
            Self::Path(path) => path,
            Self::Beneath(place) => place.path(),
        }
    }

    fn reached(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Beneath(place) => place.reached(),
        }
    }

    /// Bind-mounts the directory or file `source` at the target.
    pub(crate) fn bind(
        &self,
        source: &Path,
        access: Access,
        restrictions: Restrictions,
    ) -> Result<()> {
        match self {
            Self::Path(path) => {
                mount::bind_restricted(source, path, access, restrictions).map(drop)
            }
            Self::Beneath(place) => mount::bind_beneath(source, place, access, restrictions),
        }
    }

    /// Unmounts the mount that was found there, and no other one.
    pub(crate) fn unmount(&self, mount: &Mount) -> Result<()> {
        let reached = match self {
            Self::Path(_) => mount.target.clone(),
            Self::Beneath(place) => place.reached(),
        };
        mount::unmount_one(&reached, mount)
    }
}

/// What happens to a target path after unpublish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetCleanup {
    /// It is removed.
    Removed,
    /// It is kept: the caller created it.
    Left,
}

/// Creates the target directory for a file system, or checks that it is empty. Returns true if it was created.
pub(crate) fn make_directory(target: &TargetLocation) -> Result<bool> {
    match DirBuilder::new().mode(0o755).create(target.reached()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let metadata =
                fs::symlink_metadata(target.reached()).map_err(|error| failed(target, error))?;
            if !metadata.is_dir() {
                return Err(wrong(target, "is not a directory"));
            }
            let mut entries =
                fs::read_dir(target.reached()).map_err(|error| failed(target, error))?;
            if entries.next().is_some() {
                return Err(wrong(target, "is not empty; a mount would hide its files"));
            }
            Ok(false)
        }
        Err(error) => Err(parent(target, error)),
    }
}

/// Creates the target file for a block device, or checks that it is empty. Returns true if it was created.
pub(crate) fn make_file(target: &TargetLocation) -> Result<bool> {
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(target.reached());
    match made {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let metadata =
                fs::symlink_metadata(target.reached()).map_err(|error| failed(target, error))?;
            if !metadata.is_file() || metadata.len() > 0 {
                return Err(wrong(target, "is not an empty file"));
            }
            Ok(false)
        }
        Err(error) => Err(parent(target, error)),
    }
}

/// Removes the target file or directory. What the agent did not create, such as a directory with files, is kept.
pub(crate) fn remove(target: &TargetLocation) -> Result<()> {
    let metadata = match fs::symlink_metadata(target.reached()) {
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
        fs::remove_dir(target.reached())
    } else if metadata.is_file() && metadata.len() == 0 {
        fs::remove_file(target.reached())
    } else {
        keep(target, "it was not created by this agent");
        return Ok(());
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            keep(target, "it is not empty");
            Ok(())
        }
        other => other.map_err(|error| failed(target, error)),
    }
}

/// Says why a target is kept. The volume is not published there, which is what was asked for.
fn keep(target: &TargetLocation, why: &str) {
    tracing::warn!(path = %target.shown().display(), why, "target_path kept");
}

fn wrong(target: &TargetLocation, what: &str) -> Error {
    Error::new(
        Kind::Precondition,
        format!("target_path {} {what}", target.shown().display()),
    )
}

fn failed(target: &TargetLocation, error: io::Error) -> Error {
    Error::io(
        format!("could not use target_path {}", target.shown().display()),
        error,
    )
}

fn parent(target: &TargetLocation, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => wrong(target, "has no parent directory; create it first"),
        io::ErrorKind::NotADirectory => wrong(target, "has a parent that is not a directory"),
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
            make_directory(&TargetLocation::of(&full)).unwrap_err(),
            make_file(&TargetLocation::of(&full)).unwrap_err(),
            make_directory(&TargetLocation::of(&full.join("precious"))).unwrap_err(),
            make_file(&TargetLocation::of(&full.join("precious"))).unwrap_err(),
            make_directory(&TargetLocation::of(&directory.path().join("no/parent"))).unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Precondition, "{error}");
        }
        for kept in [full.clone(), full.join("precious")] {
            remove(&TargetLocation::of(&kept)).unwrap();
        }
        assert_eq!(fs::read_to_string(full.join("precious")).unwrap(), "x");
    }

    #[test]
    fn a_target_is_made_once_and_removed_once() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        assert!(make_directory(&TargetLocation::of(&target)).unwrap());
        assert!(!make_directory(&TargetLocation::of(&target)).unwrap());
        remove(&TargetLocation::of(&target)).unwrap();
        remove(&TargetLocation::of(&target)).unwrap();
        assert!(make_file(&TargetLocation::of(&target)).unwrap());
        assert!(!make_file(&TargetLocation::of(&target)).unwrap());
        remove(&TargetLocation::of(&target)).unwrap();
        assert!(!target.exists());
    }
}
