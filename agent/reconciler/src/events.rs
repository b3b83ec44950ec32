//! The last transitions of objects, from the state files alone.

use std::path::Path;

use drumlin_crd::ObjectKey;
use serde::Serialize;

use crate::{
    Error,
    age::age,
    record::Record,
    status::{align, shown},
    store::{self, DIRECTORY},
};

/// A transition of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectEvent {
    /// When it was last seen, in RFC 3339.
    pub time: String,
    /// Kind of the object.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The reason of its `Ready` condition.
    pub reason: String,
    /// How many messages with this reason came one after the other.
    pub count: u32,
    /// The last of these messages.
    pub message: String,
}

/// The events of all objects, or of one, oldest first: at most the last ten of each.
///
/// # Errors
/// When the state files cannot be read, or there is no object with this key.
pub fn events(state_dir: &Path, key: Option<&ObjectKey>) -> Result<Vec<ObjectEvent>, Error> {
    let root = state_dir.join(DIRECTORY);
    let records = match key {
        None => store::load(&root)?.0,
        Some(key) => vec![store::find(&root, key)?.ok_or_else(|| store::missing(key))?],
    };
    let mut events: Vec<ObjectEvent> = records.iter().flat_map(of).collect();
    events.sort();
    Ok(events)
}

/// The events of an object.
pub(crate) fn of(record: &Record) -> impl Iterator<Item = ObjectEvent> + '_ {
    let ObjectKey {
        kind,
        namespace,
        name,
    } = record.key();
    record.drumlin.events.iter().map(move |event| ObjectEvent {
        time: event.time.clone(),
        kind: kind.clone(),
        namespace: namespace.clone(),
        name: name.clone(),
        reason: event.reason.clone(),
        count: event.count,
        message: event.message.clone(),
    })
}

/// Events as a table.
pub fn render(events: &[ObjectEvent]) -> String {
    let mut text = String::new();
    if events.is_empty() {
        text.push_str("no events\n");
        return text;
    }
    let head = ["AGE", "OBJECT", "REASON", "COUNT", "MESSAGE"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(events.iter().map(|event| {
        vec![
            age(&event.time).unwrap_or_default(),
            format!("{}/{}/{}", event.kind, event.namespace, event.name),
            event.reason.clone(),
            event.count.to_string(),
            shown(&event.message),
        ]
    }));
    align(&mut text, &lines);
    text
}
