//! The state directory: a file an object, written whole, and a lock.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use drumlin_crd::{ObjectKey, Problem, names};
use k8s_openapi::jiff::Timestamp;
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use serde::{Deserialize, Serialize};

use crate::{
    Error, destroyed,
    known_directory::KnownDirectory,
    manifest_scan::Manifests,
    marker::Marker,
    prune::{Prune, Pruning},
    record::{Record, VERSION},
    state_file::{Durability, replace, sync_parent, write},
    status::FileProblem,
};

/// The reconciler's directory within the agent's state directory.
pub(crate) const DIRECTORY: &str = "reconciler";

/// The state directory, locked by one reconciler.
#[derive(Debug)]
pub(crate) struct Store {
    root: PathBuf,
    marker: Marker,
    mode: Mode,
}

/// What a store may do to its directory.
#[derive(Debug)]
enum Mode {
    /// It writes; no other reconciler does.
    Locked { _lock: Flock<File> },
    /// A dry run: it only reads, beside the reconciler that has the lock.
    DryRun,
}

/// The result of the last scan of the manifests, for the operator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SourceState {
    /// The directory.
    pub(crate) directory: String,
    /// Numeric ids of the users whose manifests are trusted, besides root and the user of the reconciler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) owners: Vec<u32>,
    /// The error if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unavailable: Option<String>,
    /// The problems of its files.
    #[serde(default)]
    pub(crate) problems: BTreeMap<String, Vec<Problem>>,
    /// Number of objects of other nodes.
    #[serde(default)]
    pub(crate) elsewhere: usize,
    /// Files without a document, which are taken for an accident.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) empty: Vec<String>,
    /// Files and subdirectories that may be meant as manifests, and are not read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ignored: Vec<String>,
    /// Which objects are pruned, if any are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prune: Option<Prune>,
    /// When objects were pruned within the last hour.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pruned: Vec<Timestamp>,
}

/// A record that cannot be used; its file is left unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) path: PathBuf,
    pub(crate) why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl SourceState {
    /// The directory that was followed, if one was.
    pub(crate) fn followed(self) -> Option<Manifests> {
        let directory = PathBuf::from(self.directory);
        directory.is_absolute().then_some(Manifests {
            directory,
            owners: self.owners,
        })
    }

    /// What is pruned of it, if anything.
    pub(crate) fn pruning(&self) -> Option<Pruning<'_>> {
        Pruning::of(self.prune.as_ref(), &self.directory, self)
    }

    /// The problems of its files.
    pub(crate) fn problems(&self) -> Vec<FileProblem> {
        let problems = self.problems.iter().flat_map(|(file, problems)| {
            problems.iter().map(|problem| FileProblem {
                file: file.clone(),
                problem: problem.clone(),
            })
        });
        problems.collect()
    }
}

impl Store {
    /// Locks the state directory below `state_dir`; creates it if it is missing.
    ///
    /// # Errors
    /// When another reconciler has locked it, with its pid.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, Error> {
        let root = state_dir.join(DIRECTORY);
        let failed =
            |error: io::Error| Error::State(format!("could not use {}: {error}", root.display()));
        let create = |directory: &Path| {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700).create(directory)
        };
        create(&root).map_err(failed)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(root.join("LOCK"))
            .map_err(failed)?;
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder);
        let mut lock =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
                Error::State(match errno {
                    Errno::EWOULDBLOCK => format!(
                        "{} is locked by another reconciler, pid {}; stop that one first",
                        root.display(),
                        holder.trim()
                    ),
                    errno => format!("could not lock {}: {errno}", root.display()),
                })
            })?;
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .map_err(failed)?;
        // Before there is anything: a kill between the two leaves no state that looks like an old one.
        let marker = Marker::open(&root)?;
        create(&root.join("objects")).map_err(failed)?;
        Ok(Self {
            marker,
            root,
            mode: Mode::Locked { _lock: lock },
        })
    }

    /// Opens the state directory below `state_dir` for a dry run: without a lock, and nothing is ever written. A missing
    /// directory has no objects.
    pub(crate) fn dry_run(state_dir: &Path) -> Self {
        let root = state_dir.join(DIRECTORY);
        Self {
            marker: Marker::dry_run(&root),
            root,
            mode: Mode::DryRun,
        }
    }

    /// True if nothing is written.
    pub(crate) fn is_dry_run(&self) -> bool {
        matches!(self.mode, Mode::DryRun)
    }

    /// Whether records may be missing.
    pub(crate) fn marker(&self) -> &Marker {
        &self.marker
    }

    /// Writes a record durably: later steps rely on it.
    pub(crate) fn save(&self, record: &Record) -> Result<(), Error> {
        self.save_as(record, Durability::Synced)
    }

    /// Writes a record durably over one of an object for which nothing was begun.
    pub(crate) fn save_begun(&self, record: &Record) -> Result<(), Error> {
        self.save_as(record, Durability::SyncedOnce)
    }

    /// Writes a record that a power cut may take; see [`Marker::leave_unsaved`].
    pub(crate) fn save_unsynced(&self, record: &Record) -> Result<(), Error> {
        self.save_as(record, Durability::Unsynced)
    }

    /// Writes the content of a record durably; the caller syncs the directory of the file, which is returned. None in a dry
    /// run.
    pub(crate) fn save_content(&self, record: &Record) -> Result<Option<PathBuf>, Error> {
        self.save_as(record, Durability::Content)?;
        let path = path(&self.root, &record.key())?;
        Ok((!self.is_dry_run()).then_some(path))
    }

    fn save_as(&self, record: &Record, durability: Durability) -> Result<(), Error> {
        let path = path(&self.root, &record.key())?;
        if self.is_dry_run() {
            return Ok(());
        }
        replace(&path, record, durability)
    }

    /// Deletes a record.
    pub(crate) fn remove(&self, key: &ObjectKey) -> Result<(), Error> {
        let path = path(&self.root, key)?;
        if self.is_dry_run() {
            return Ok(());
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::State(format!(
                "could not remove {}: {error}",
                path.display()
            ))),
            _ => sync_parent(&path),
        }
    }

    /// Notes the end of an object whose record is removed: who misses it asks for its events.
    pub(crate) fn note_end(&self, record: &Record) {
        if !self.is_dry_run()
            && let Err(error) = destroyed::note(&self.root, record)
        {
            tracing::warn!(object = %record.key(), error = %error, "the end of an object could not be noted among the events");
        }
    }

    /// Writes the result of the last scan of the manifests.
    pub(crate) fn save_source(&self, source: &SourceState) -> Result<(), Error> {
        if self.is_dry_run() {
            return Ok(());
        }
        write(&self.root.join("source.json"), source)
    }

    /// The reconciler's directory.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Writes on which file system the directory of manifests is.
    pub(crate) fn save_known_directory(
        &self,
        path: &Path,
        known: &KnownDirectory,
    ) -> Result<(), Error> {
        if self.is_dry_run() {
            return Ok(());
        }
        write(path, known)
    }

    /// The result of the last scan of the manifests, if there was one.
    pub(crate) fn source(&self) -> Option<SourceState> {
        load_source(&self.root)
    }

    /// All records.
    pub(crate) fn load(&self) -> Result<(Vec<Record>, Vec<Unreadable>), Error> {
        load(&self.root)
    }
}

/// All records below a reconciler's state directory, without locking it.
pub(crate) fn load(root: &Path) -> Result<(Vec<Record>, Vec<Unreadable>), Error> {
    load_kinds(&entries(&root.join("objects"))?)
}

/// The records of a kind.
pub(crate) fn load_kind(root: &Path, kind: &str) -> Result<(Vec<Record>, Vec<Unreadable>), Error> {
    load_kinds(&[root.join("objects").join(kind)])
}

/// The records in the directories of kinds.
fn load_kinds(kinds: &[PathBuf]) -> Result<(Vec<Record>, Vec<Unreadable>), Error> {
    let mut records = Vec::new();
    let mut unreadable = Vec::new();
    for kind in kinds {
        for namespace in entries(kind)? {
            for path in entries(&namespace)? {
                if path.extension().is_none_or(|extension| extension != "json") {
                    continue;
                }
                match read(&path) {
                    Ok(record) => records.extend(record),
                    Err(why) => unreadable.push(Unreadable { path, why }),
                }
            }
        }
    }
    records.sort_by_key(Record::key);
    Ok((records, unreadable))
}

/// The record of an object, if there is one.
///
/// # Errors
/// When its file cannot be read.
pub(crate) fn find(root: &Path, key: &ObjectKey) -> Result<Option<Record>, Error> {
    let path = path(root, key)?;
    read(&path).map_err(|why| could_not_read(&path, &why))
}

/// The error for an object that there is not.
pub(crate) fn missing(key: &ObjectKey) -> Error {
    Error::State(format!(
        "{key} does not exist; `drumlin status` lists all objects"
    ))
}

/// The error of a state file.
pub(crate) fn could_not_read(path: &Path, why: &str) -> Error {
    Error::State(format!("could not read {}: {why}", path.display()))
}

/// The result of the last scan of the manifests, if there was one.
pub(crate) fn load_source(root: &Path) -> Option<SourceState> {
    serde_json::from_slice(&fs::read(root.join("source.json")).ok()?).ok()
}

/// The record in a file; none if there is no such file, since the reconciler may remove it at any time, and none in an
/// empty one, which a power cut leaves of a record that was never synced: nothing was begun for its object.
fn read(path: &Path) -> Result<Option<Record>, String> {
    #[derive(Deserialize)]
    struct Version {
        drumlin: Number,
    }
    #[derive(Deserialize)]
    struct Number {
        version: u32,
    }
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if bytes.is_empty() {
        return Ok(None);
    }
    let version: Version = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if version.drumlin.version != VERSION {
        return Err(format!(
            "has format version {}, but this reconciler supports {VERSION}; file ignored",
            version.drumlin.version
        ));
    }
    let record = serde_json::from_slice(&bytes);
    record.map(Some).map_err(|error| error.to_string())
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed =
        |error: io::Error| Error::State(format!("could not read {}: {error}", directory.display()));
    match fs::read_dir(directory) {
        Ok(entries) => entries
            .map(|entry| entry.map(|entry| entry.path()).map_err(failed))
            .collect(),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(failed(error)),
    }
}

/// Maximum length of an object name that becomes a file name; with the additions, file systems permit 255 bytes.
const LONGEST: usize = 240;

/// The file of an object. Names were checked when they were read; they are checked again where they become paths.
pub(crate) fn path(root: &Path, key: &ObjectKey) -> Result<PathBuf, Error> {
    let is_kind = key.kind.bytes().all(|byte| byte.is_ascii_alphabetic()) && !key.kind.is_empty();
    if !is_kind || !names::is_label(&key.namespace) || !names::is_subdomain(&key.name) {
        return Err(Error::State(format!(
            "{key} is not a valid name for a state file"
        )));
    }
    let directory = root.join("objects").join(&key.kind).join(&key.namespace);
    if key.name.len() <= LONGEST {
        return Ok(directory.join(format!("{}.json", key.name)));
    }
    // No name has an underscore.
    let short = names::csi_name("long", &key.kind, (&key.namespace, &key.name), None);
    Ok(directory.join(format!("_{short}.json")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use drumlin_crd::read;

    fn record() -> Record {
        let text = "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {name: data, namespace: db}\nspec: {capacity: 1Gi}\n";
        let document = read(text).unwrap().documents.remove(0);
        Record::new(&document.object, "a.yaml", 1)
    }

    #[test]
    fn a_record_that_is_removed_while_all_are_read_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        store.save(&record()).unwrap();
        let path = path(&store.root, &record().key()).unwrap();
        fs::remove_file(&path).unwrap();
        // What a reader has listed just before.
        std::os::unix::fs::symlink("nothing", &path).unwrap();
        let (records, unreadable) = store.load().unwrap();
        assert!(
            records.is_empty() && unreadable.is_empty(),
            "{unreadable:?}"
        );
        assert!(find(&store.root, &record().key()).unwrap().is_none());
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written_and_looks_like_kubectls() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let record = record();
        store.save(&record).unwrap();
        assert_eq!(store.load().unwrap(), (vec![record.clone()], Vec::new()));
        let path = directory
            .path()
            .join("reconciler/objects/Volume/db/data.json");
        let json: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert_eq!(json["apiVersion"], "drumlin.dev/v1alpha1");
        assert_eq!(json["spec"]["capacity"], "1Gi");
        store.remove(&record.key()).unwrap();
        store.remove(&record.key()).unwrap();
        assert_eq!(store.load().unwrap().0, Vec::new());
    }

    #[test]
    fn the_longest_names_have_files_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let records = ["a".repeat(253), format!("b{}", ".c-d".repeat(63))].map(|name| {
            let mut record = record();
            record.metadata.name = Some(name);
            store.save(&record).unwrap();
            record
        });
        assert_eq!(store.load().unwrap(), (records.to_vec(), Vec::new()));
        for record in &records {
            store.remove(&record.key()).unwrap();
        }
        assert_eq!(store.load().unwrap().0, Vec::new());
    }

    #[test]
    fn a_second_reconciler_is_refused_with_the_pid_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let first = Store::open(directory.path()).unwrap();
        let error = Store::open(directory.path()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("pid {}", std::process::id())),
            "{error}"
        );
        drop(first);
        Store::open(directory.path()).unwrap();
    }

    #[test]
    fn an_empty_file_is_a_record_that_a_power_cut_took() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let record = record();
        store.save_unsynced(&record).unwrap();
        assert_eq!(store.load().unwrap(), (vec![record.clone()], Vec::new()));
        let path = path(&store.root, &record.key()).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(store.load().unwrap(), (Vec::new(), Vec::new()));
        store.save_unsynced(&record).unwrap();
        assert_eq!(store.load().unwrap(), (vec![record.clone()], Vec::new()));
    }

    #[test]
    fn a_broken_and_a_newer_record_are_reported_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let home = directory.path().join("reconciler/objects/Volume/db");
        fs::create_dir_all(&home).unwrap();
        fs::write(home.join("broken.json"), "{").unwrap();
        fs::write(home.join("newer.json"), r#"{"drumlin": {"version": 2}}"#).unwrap();
        let (records, unreadable) = store.load().unwrap();
        assert_eq!((records.len(), unreadable.len()), (0, 2));
        assert!(unreadable.iter().any(|one| one.why.contains("version 2")));
        assert_eq!(fs::read_to_string(home.join("broken.json")).unwrap(), "{");
    }

    #[test]
    fn no_name_leads_out_of_the_state_directory() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        for (namespace, name) in [("..", "a"), ("a", ".."), ("a", "../../x"), ("a/b", "c")] {
            let mut record = record();
            record.metadata.namespace = Some(namespace.into());
            record.metadata.name = Some(name.into());
            assert!(store.save(&record).is_err(), "{namespace}/{name}");
        }
    }
}
