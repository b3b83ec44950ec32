//! Files of a state directory.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use serde::Serialize;

use crate::Error;

/// Writes a file atomically and durably. The directory that it is in is created if it is missing.
///
/// # Errors
/// If it cannot be written; then the former file is there.
pub fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Error> {
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
    file.write_all(&bytes)
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    fs::rename(&passing, path).map_err(failed)?;
    sync_parent(path)
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
