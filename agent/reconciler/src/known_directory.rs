//! Remembers on which file system the directory of manifests was, beyond a restart: after a boot it may be a mount point that
//! is not mounted, with other manifests in it, or another disk may be there. Their lack would make orphans of the objects.

use std::{fs, io, os::fd::AsFd, path::Path};

use drumlin_crd::ObjectKey;
use nix::sys::{
    statfs::{EXT4_SUPER_MAGIC, fstatfs},
    statvfs::fstatvfs,
};
use serde::{Deserialize, Serialize};

use crate::{count::counted, store::Store};

/// The file in the reconciler's directory.
const FILE: &str = "directory.json";

/// What tells a file system from another one, also after a boot, which may give its device another number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FileSystemId {
    /// Its type, `f_type` of `statfs(2)`.
    kind: i64,
    /// Its `f_fsid`, of ext4, which has it from its UUID. That of others is of the number of their device, of the mount or of
    /// the subvolume, which another boot or a rollback of the host changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
}

/// The directory that was followed, and its file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KnownDirectory {
    directory: String,
    file_system: FileSystemId,
}

impl FileSystemId {
    /// That of an open file or directory; none if it cannot be determined.
    pub(crate) fn of(opened: &impl AsFd) -> Option<Self> {
        let kind = fstatfs(opened).ok()?.filesystem_type();
        let id =
            (kind == EXT4_SUPER_MAGIC).then(|| fstatvfs(opened).map(|found| found.filesystem_id()));
        Some(Self {
            kind: kind.0,
            id: id.transpose().ok()?.filter(|id| *id != 0),
        })
    }

    fn differs(&self, other: &Self) -> bool {
        let ids = self.id.zip(other.id);
        self.kind != other.kind || ids.is_some_and(|(one, other)| one != other)
    }
}

impl KnownDirectory {
    /// Refuses a directory that is on another file system than before and lacks manifests that were there: `lost` finds the
    /// objects that would become orphans. Returns what is to be remembered, if that is not what is.
    ///
    /// # Errors
    /// Why the directory is not used, and how to have it accepted.
    pub(crate) fn check(
        store: &Store,
        directory: &str,
        now: &FileSystemId,
        lost: impl FnOnce() -> Vec<ObjectKey>,
    ) -> Result<Option<Self>, String> {
        let path = store.root().join(FILE);
        let known = load(&path).filter(|known| known.directory == directory);
        let is_another = known
            .as_ref()
            .is_some_and(|known| known.file_system.differs(now));
        let lost = if is_another { lost() } else { Vec::new() };
        if let [first, others @ ..] = lost.as_slice() {
            let more = match others.len() {
                0 => String::new(),
                count => format!(" and of {}", counted(count, "other object")),
            };
            return Err(format!(
                "{directory} is on another file system than before, and lacks the manifest of {first}{more}: mount the former one, or put the manifests there; to accept that they are gone, remove {}",
                path.display()
            ));
        }
        let now = Self {
            directory: directory.to_owned(),
            file_system: now.clone(),
        };
        Ok((known.as_ref() != Some(&now)).then_some(now))
    }

    /// Remembers the file system of a directory of which each file could be read. What cannot be written now is at a later
    /// scan.
    pub(crate) fn remember(&self, store: &Store) {
        let path = store.root().join(FILE);
        if let Err(error) = store.save_known_directory(&path, self) {
            tracing::debug!(error = %error, "not remembered on which file system the directory of manifests is");
        }
    }
}

/// What is remembered. What cannot be read is not, and is written again.
fn load(path: &Path) -> Option<KnownDirectory> {
    let text = fs::read(path);
    let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let known = match text {
        Err(error) if missing(&error) => return None,
        Err(error) => Err(error.to_string()),
        Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
    };
    let known = known.inspect_err(|error| {
        tracing::warn!(path = %path.display(), error, "not known on which file system the directory of manifests was");
    });
    known.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_told_apart_by_what_lasts_beyond_a_boot() {
        let of = |kind, id| FileSystemId { kind, id };
        assert!(of(1, Some(2)).differs(&of(1, Some(3))));
        assert!(of(1, None).differs(&of(2, None)));
        assert!(!of(1, Some(2)).differs(&of(1, Some(2))));
        assert!(!of(1, None).differs(&of(1, Some(2))), "it is not known");
    }

    #[test]
    fn what_lacks_manifests_is_refused_until_the_note_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        let [first, second] = [1, 2].map(|id| FileSystemId {
            kind: 0,
            id: Some(id),
        });
        let lost = || {
            vec![ObjectKey {
                kind: "Volume".to_owned(),
                namespace: "db".to_owned(),
                name: "data".to_owned(),
            }]
        };
        let check = |directory: &str, now: &FileSystemId| {
            if let Some(new) = KnownDirectory::check(&store, directory, now, lost)? {
                new.remember(&store);
            }
            Ok::<_, String>(())
        };
        check("/m", &first).unwrap();
        check("/m", &first).unwrap();
        let why = check("/m", &second).unwrap_err();
        assert!(
            why.contains("lacks the manifest of Volume/db/data: "),
            "{why}"
        );
        let note = store.root().join(FILE);
        assert!(why.ends_with(&note.display().to_string()), "{why}");
        check("/other", &second).unwrap();
        check("/m", &first).unwrap();
        fs::remove_file(&note).unwrap();
        check("/m", &second).unwrap();
        // What cannot be read is known no more, and it is said.
        fs::write(&note, "{").unwrap();
        check("/m", &first).unwrap();
        let new = KnownDirectory::check(&store, "/m", &second, Vec::new).unwrap();
        check("/m", &second).unwrap_err();
        new.unwrap().remember(&store);
        check("/m", &second).unwrap();
    }
}
