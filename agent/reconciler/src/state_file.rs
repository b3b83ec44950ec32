//! Files of a state directory.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use serde::Serialize;

use crate::Error;

/// Whether a file must be there after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It is synced before the write returns.
    Synced,
    /// The same, but a power cut during the write may leave an empty file: for a former one of which nothing is needed. Name
    /// and content are synced together then, which takes half as long.
    SyncedOnce,
    /// Its content is synced before it gets its name, and the name is not: a power cut leaves it or the former file.
    Content,
    /// The kernel writes it when it likes: after a power cut a new file may be missing, or empty.
    Unsynced,
}

/// Writes a file atomically and durably. The directory that it is in is created if it is missing.
///
/// # Errors
/// If it cannot be written; then the former file is there.
pub fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Error> {
    replace(path, value, Durability::Synced)
}

/// Writes a file atomically. The directory that it is in is created if it is missing.
///
/// # Errors
/// If it cannot be written; then the former file is there.
pub(crate) fn replace<T: Serialize>(
    path: &Path,
    value: &T,
    durability: Durability,
) -> Result<(), Error> {
    let failed =
        |error: io::Error| Error::State(format!("could not write {}: {error}", path.display()));
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| failed(error.into()))?;
    bytes.push(b'\n');
    let parent = path.parent().unwrap_or(path);
    if !parent.is_dir() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(failed)?;
        sync_parent(parent)?;
    }
    let passing = path.with_extension("json.new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&passing)
        .map_err(failed)?;
    file.write_all(&bytes).map_err(failed)?;
    if matches!(durability, Durability::Synced | Durability::Content) {
        file.sync_all().map_err(failed)?;
    }
    fs::rename(&passing, path).map_err(failed)?;
    if durability == Durability::SyncedOnce {
        file.sync_all().map_err(failed)?;
    }
    match durability {
        Durability::Synced | Durability::SyncedOnce => sync_parent(path),
        Durability::Content | Durability::Unsynced => Ok(()),
    }
}

pub(crate) fn sync_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    match File::open(parent).and_then(|parent| parent.sync_all()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::State(format!(
            "could not sync {}: {error}",
            parent.display()
        ))),
        _ => Ok(()),
    }
}
