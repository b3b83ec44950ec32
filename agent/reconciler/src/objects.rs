//! Objects as the state files have them, for commands: the daemon may be down.

use std::path::Path;

use drumlin_crd::{ObjectKey, Progress};
use serde_json::{Value, json};

use crate::{
    Error,
    record::Record,
    status::{StatusTable, row},
    store::{self, DIRECTORY},
};

/// Which objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// The one with this key.
    One(ObjectKey),
    /// All of a namespace, or of all namespaces, that have these labels.
    Some {
        /// The namespace.
        namespace: Option<String>,
        /// Keys and values of labels.
        labels: Vec<(String, String)>,
    },
}

/// Objects of a kind as `kubectl get -o json` shows them. Sorted by namespace and name.
///
/// # Errors
/// When the state files cannot be read, or there is no object with this key.
pub fn find(state_dir: &Path, kind: &str, selection: &Selection) -> Result<Vec<Value>, Error> {
    let found = records(state_dir, kind, selection)?;
    Ok(found.iter().map(shown).collect())
}

/// The same objects as a table.
///
/// # Errors
/// As those of [`find`].
pub fn table(state_dir: &Path, kind: &str, selection: &Selection) -> Result<StatusTable, Error> {
    let found = records(state_dir, kind, selection)?;
    Ok(StatusTable {
        objects: found.iter().map(row).collect(),
        ..StatusTable::default()
    })
}

fn records(state_dir: &Path, kind: &str, selection: &Selection) -> Result<Vec<Record>, Error> {
    match selection {
        Selection::One(key) => match store::find(&state_dir.join(DIRECTORY), key)? {
            Some(record) => Ok(vec![record]),
            None => Err(store::missing(key)),
        },
        Selection::Some { namespace, labels } => {
            let mut records = of_kind(state_dir, kind)?;
            if let Some(namespace) = namespace {
                records.retain(|record| record.key().namespace == *namespace);
            }
            records.retain(|record| labels.iter().all(|label| has_label(record, label)));
            Ok(records)
        }
    }
}

fn has_label(record: &Record, (key, value): &(String, String)) -> bool {
    let labels = record.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(key)) == Some(value)
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

/// The records of a kind. One that cannot be read is not taken for one that is not there.
pub(crate) fn of_kind(state_dir: &Path, kind: &str) -> Result<Vec<Record>, Error> {
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
