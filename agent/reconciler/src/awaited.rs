//! What commands wait for: the state files as the reconciler has them, and the manifests as they are now, since what is on
//! record may be that of a manifest before its last edit. The daemon may be down.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use drumlin_crd::ObjectKey;

use crate::{
    Error, Hooks,
    client::Client,
    dry_run::DryRun,
    engine::Engine,
    ingest::Catalog,
    manifest_scan::{Manifests, followed},
    objects::of_kind,
    plan::node,
    record::{Body, Of, Record},
    source::{directory::Directory, trust::Trust},
    state::{Shared, boot},
    store::{self, DIRECTORY, Store},
};

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// A condition of this type has this status, of the object as its manifest is now.
    Condition {
        /// Its type, such as `Ready`.
        kind: String,
        /// Its status: `True`, `False` or `Unknown`.
        status: String,
    },
    /// There is no such object, or it is deleted or released as its manifest says.
    Deleted,
}

/// Waits for objects of a state directory.
#[derive(Debug)]
pub struct Waiting {
    state_dir: PathBuf,
    manifests: Option<Directory>,
    node: String,
}

impl Waiting {
    /// Of this state directory. `node` is the name of this node while no object has a handle.
    pub fn new(state_dir: &Path, node: String) -> Self {
        let followed = followed(state_dir);
        Self {
            state_dir: state_dir.to_owned(),
            manifests: followed.map(|Manifests { directory, owners }| {
                Directory::new(directory, Trust::new(&owners))
            }),
            node,
        }
    }

    /// Those of `keys` that are not as is waited for, each with the reason.
    ///
    /// # Errors
    /// When a state file cannot be read.
    pub async fn missing(
        &mut self,
        keys: &[ObjectKey],
        awaited: &Awaited,
    ) -> Result<Vec<(ObjectKey, String)>, Error> {
        let waiting = all_missing(&self.state_dir, keys, awaited)?;
        // Whether an object is deleted has its record alone.
        if !waiting.is_empty() || *awaited == Awaited::Deleted {
            return Ok(waiting);
        }
        let manifests = self.compare().await?;
        let unread = manifests
            .unread
            .iter()
            .map(|record| with_reason(record.key()));
        let waiting = unread.chain(manifests.refused);
        let waiting: Vec<_> = waiting.filter(|(key, _)| keys.contains(key)).collect();
        if waiting.is_empty() {
            // An edit may have been read after the first look.
            return all_missing(&self.state_dir, keys, awaited);
        }
        Ok(waiting)
    }

    /// The volumes that are to be mounted on the host and are not yet, each with the reason.
    ///
    /// # Errors
    /// When the state files cannot be read.
    pub async fn unmounted(&mut self) -> Result<Vec<(ObjectKey, String)>, Error> {
        let waiting = self.unmounted_on_record()?;
        if !waiting.is_empty() {
            return Ok(waiting);
        }
        let unread = self.compare().await?.unread;
        let unread = unread.iter().filter(|record| is_to_be_mounted(record));
        let waiting: Vec<_> = unread.map(Record::key).map(with_reason).collect();
        if waiting.is_empty() {
            // An edit may have been read after the first look.
            return self.unmounted_on_record();
        }
        Ok(waiting)
    }

    fn unmounted_on_record(&self) -> Result<Vec<(ObjectKey, String)>, Error> {
        let records = of_kind(&self.state_dir, "Volume")?;
        let waiting = records.iter().filter(|record| is_to_be_mounted(record));
        let waiting =
            waiting.filter_map(|record| Some((record.key(), unmet(record, "Ready", "True")?)));
        Ok(waiting.collect())
    }

    /// Compares the manifests with the records. Nothing differs if the directory cannot be read: then the reconciler does not
    /// follow it either.
    async fn compare(&mut self) -> Result<Comparison, Error> {
        let Some(manifests) = &mut self.manifests else {
            return Ok(Comparison::default());
        };
        let scan = manifests.settled_scan().await;
        let store = Store::dry_run(&self.state_dir);
        let (loaded, _) = store.load()?;
        let before: HashMap<ObjectKey, Record> = loaded
            .iter()
            .map(|record| (record.key(), record.clone()))
            .collect();
        let dry_run = DryRun::offline(node(&loaded, &self.node), HashMap::new());
        let shared = Shared::of(store, self.state_dir.clone(), Hooks::default(), loaded);
        let engine = Engine::new(Arc::new(shared), Client::dry_run(Arc::new(dry_run)));
        let _ = engine.greet().await;
        let directory = manifests.path().display().to_string();
        let mut catalog = Catalog::default();
        catalog.apply(&engine, &directory, scan)?;
        let keys = engine.shared.keys_of(Record::is_of_file);
        let records: Vec<Record> = keys
            .iter()
            .filter_map(|key| engine.shared.record(key))
            .collect();
        let problems = catalog.state().map(|state| &state.problems);
        let refused = records.iter().filter_map(|record| {
            let file = &record.drumlin.file;
            let problem = problems?.get(file)?.first()?;
            let why = format!("its manifest {file} cannot be used: {problem}");
            Some((record.key(), why))
        });
        let refused = refused.collect();
        let is_changed = |record: &Record| {
            let before = before.get(&record.key());
            before.is_none_or(|before| before.metadata.generation != record.metadata.generation)
        };
        Ok(Comparison {
            refused,
            unread: records.into_iter().filter(is_changed).collect(),
        })
    }
}

/// How the manifests differ from the records.
#[derive(Debug, Default)]
struct Comparison {
    /// The records that a scan would change, as it would leave them.
    unread: Vec<Record>,
    /// The objects whose files cannot be used, each with the reason: their last valid version applies.
    refused: Vec<(ObjectKey, String)>,
}

fn all_missing(
    state_dir: &Path,
    keys: &[ObjectKey],
    awaited: &Awaited,
) -> Result<Vec<(ObjectKey, String)>, Error> {
    let mut waiting = Vec::new();
    for key in keys {
        if let Some(why) = missing(state_dir, key, awaited)? {
            waiting.push((key.clone(), why));
        }
    }
    Ok(waiting)
}

fn with_reason(key: ObjectKey) -> (ObjectKey, String) {
    (key, "its manifest was not read yet".to_owned())
}

fn is_to_be_mounted(record: &Record) -> bool {
    let has_mount = matches!(&record.body, Body::Volume(Of { spec, .. }) if spec.mount.is_some());
    has_mount && !record.is_absent()
}

/// Why an object is not as is waited for; none if it is.
///
/// # Errors
/// When its state file cannot be read.
fn missing(state_dir: &Path, key: &ObjectKey, awaited: &Awaited) -> Result<Option<String>, Error> {
    let record = store::find(&state_dir.join(DIRECTORY), key)?;
    Ok(match (record.as_ref(), awaited) {
        (None, Awaited::Deleted) => None,
        (None, Awaited::Condition { .. }) => Some("does not exist yet".to_owned()),
        (Some(record), Awaited::Deleted) => {
            (!record.is_destroyed()).then(|| explanation(record, "Ready"))
        }
        (Some(record), Awaited::Condition { kind, status }) => unmet(record, kind, status),
    })
}

fn unmet(record: &Record, kind: &str, status: &str) -> Option<String> {
    if record.metadata.generation != Some(record.observed_generation()) {
        return Some("its manifest was not reconciled yet".to_owned());
    }
    let found = record.condition(kind);
    if found.is_none_or(|found| found.status != status) {
        return Some(explanation(record, kind));
    }
    // What was said before the host was started anew says nothing of its mounts.
    let book = &record.drumlin;
    let is_old = book.mounted.is_some() && book.boot.as_deref() != Some(boot().as_str());
    (is_old && status == "True").then(|| "not mounted since the host was started".to_owned())
}

fn explanation(record: &Record, kind: &str) -> String {
    match record.condition(kind) {
        Some(found) => format!(
            "{kind} is {}: {}: {}",
            found.status, found.reason, found.message
        ),
        None => format!("has no condition {kind} yet"),
    }
}
