//! Objects as the state files have them, for commands: the daemon may be down.

use std::path::Path;

use drumlin_crd::{ObjectKey, Progress};
use serde_json::{Value, json};

use crate::{
    Error,
    record::{Body, Of, Record},
    state::boot,
    status::{StatusTable, row},
    store::{self, DIRECTORY},
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

/// The objects of a kind, all of its namespaces, or the one with this key, as `kubectl get -o json` shows them. Sorted by
/// namespace and name.
///
/// # Errors
/// When the state files cannot be read, or there is no object with this key.
pub fn find(state_dir: &Path, kind: &str, key: Option<&ObjectKey>) -> Result<Vec<Value>, Error> {
    Ok(records(state_dir, kind, key)?.iter().map(shown).collect())
}

/// The same objects as a table.
///
/// # Errors
/// As those of [`find`].
pub fn table(state_dir: &Path, kind: &str, key: Option<&ObjectKey>) -> Result<StatusTable, Error> {
    Ok(StatusTable {
        objects: records(state_dir, kind, key)?.iter().map(row).collect(),
        ..StatusTable::default()
    })
}

fn records(state_dir: &Path, kind: &str, key: Option<&ObjectKey>) -> Result<Vec<Record>, Error> {
    let Some(key) = key else {
        return of_kind(state_dir, kind);
    };
    match store::find(&state_dir.join(DIRECTORY), key)? {
        Some(record) => Ok(vec![record]),
        None => Err(store::missing(key)),
    }
}

/// Why an object is not as is waited for; none if it is.
///
/// # Errors
/// When its state file cannot be read.
pub fn missing(
    state_dir: &Path,
    key: &ObjectKey,
    awaited: &Awaited,
) -> Result<Option<String>, Error> {
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

/// The objects for which the agent copies or wipes, and how far it was at the last attempt of the call.
///
/// # Errors
/// When the state files cannot be read.
pub fn in_progress(state_dir: &Path) -> Result<Vec<(ObjectKey, Progress)>, Error> {
    let (mut records, _) = store::load(&state_dir.join(DIRECTORY))?;
    let records = records.iter_mut().filter_map(|record| {
        let last = record.last_operation().as_ref()?;
        Some((last.progress.clone()?, record.key()))
    });
    Ok(records.map(|(progress, key)| (key, progress)).collect())
}

/// The volumes that are to be mounted on the host and are not yet, each with the reason.
///
/// # Errors
/// When the state files cannot be read.
pub fn unmounted(state_dir: &Path) -> Result<Vec<(ObjectKey, String)>, Error> {
    let records = of_kind(state_dir, "Volume")?;
    let waiting = records.iter().filter(|record| {
        let is_mounted =
            matches!(&record.body, Body::Volume(Of { spec, .. }) if spec.mount.is_some());
        is_mounted && !record.is_absent()
    });
    Ok(waiting
        .filter_map(|record| Some((record.key(), unmet(record, "Ready", "True")?)))
        .collect())
}

/// The records of a kind. One that cannot be read is not taken for one that is not there.
fn of_kind(state_dir: &Path, kind: &str) -> Result<Vec<Record>, Error> {
    let (records, unreadable) = store::load_kind(&state_dir.join(DIRECTORY), kind)?;
    match unreadable.first() {
        None => Ok(records),
        Some(one) => Err(store::could_not_read(&one.path, &one.why)),
    }
}

/// The object without what is private to the reconciler.
fn shown(record: &Record) -> Value {
    let mut shown = json!(record);
    if let Some(members) = shown.as_object_mut() {
        members.remove("drumlin");
    }
    shown
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
