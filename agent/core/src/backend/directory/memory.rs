//! Remembers which directories were used: an empty one in the place of one that was used is that of a file system that is
//! not mounted, or of images that were moved away. Used, it would pass for the other one: what is in that would be lost for
//! all that callers know, and new volumes would be on another disk.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use uuid::Uuid;

use super::{DirectorySettings, record};
use crate::{Error, Kind, Result, host::fsync};

/// The UUID namespace of the names of notes.
const NOTES: Uuid = Uuid::from_u128(0x6f0e_5a2c_83b1_5f0d_9a64_2f51_c0de_41d7);

/// The note that a directory was used.
#[derive(Debug)]
pub(super) struct UsedNote<'a> {
    directory: &'a Path,
    note: PathBuf,
}

impl<'a> UsedNote<'a> {
    /// That of a directory; none if nothing is remembered.
    pub(super) fn of(settings: &'a DirectorySettings) -> Option<Self> {
        let directory = settings.path.as_path();
        let name = Uuid::new_v5(&NOTES, directory.as_os_str().as_encoded_bytes());
        let note = settings.memory.as_ref()?.join(name.to_string());
        Some(Self { directory, note })
    }

    /// Returns true if the directory was used before.
    pub(super) fn is_there(&self) -> bool {
        self.note.exists()
    }

    /// The error for a directory that was used before.
    pub(super) fn lost(&self, how: &str) -> Error {
        Error::new(
            Kind::Precondition,
            format!(
                "{directory} {how}, but was used for images before: mount its file system, or move the images back; to begin with an empty one, remove {note}",
                directory = self.directory.display(),
                note = self.note.display()
            ),
        )
    }

    /// Notes that the directory is used. A full disk must not make it unusable.
    pub(super) fn write(&self) {
        if self.is_there() {
            return;
        }
        if let Err(error) = self.try_write() {
            tracing::warn!(directory = %self.directory.display(), error = %error.chain(), "not remembered that the directory is used");
        }
    }

    fn try_write(&self) -> Result<()> {
        let failed = |error| Error::io(format!("could not write {}", self.note.display()), error);
        let folder = self.note.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).map_err(failed)?;
        let mut file = File::create(&self.note).map_err(failed)?;
        // For who looks what it is about.
        writeln!(file, "{}", self.directory.display()).map_err(failed)?;
        fsync(&file).map_err(failed)?;
        record::sync_directory(folder)
    }
}
