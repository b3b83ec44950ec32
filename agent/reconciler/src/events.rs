//! The last transitions of objects, from the state files alone.

use std::{fmt::Write, iter::once, path::Path};

use anstyle::Style;
use drumlin_crd::ObjectKey;
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    age::age,
    destroyed,
    record::Record,
    status::{align, row, shown},
    store::{self, DIRECTORY},
};

/// A transition of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// Of the last event of an object the colour of its state; what was before has none.
    #[serde(skip)]
    pub(crate) style: Style,
}

/// The events of all objects, or of one, oldest first: at most the last ten of each, and the last one of each of the last
/// hundreds that are gone.
///
/// # Errors
/// When the state files cannot be read, or there is no object with this key.
pub fn events(state_dir: &Path, key: Option<&ObjectKey>) -> Result<Vec<ObjectEvent>, Error> {
    let root = state_dir.join(DIRECTORY);
    let records = match key {
        None => store::load(&root)?.0,
        Some(key) => store::find(&root, key)?.into_iter().collect(),
    };
    let mut events: Vec<ObjectEvent> = records.iter().flat_map(of).collect();
    let is_meant = |event: &ObjectEvent| key.is_none_or(|key| event.is_of(key));
    events.extend(destroyed::read(&root).into_iter().filter(is_meant));
    if let Some(key) = key
        && records.is_empty()
        && events.is_empty()
    {
        return Err(store::missing(key));
    }
    events.sort();
    Ok(events)
}

impl ObjectEvent {
    fn is_of(&self, key: &ObjectKey) -> bool {
        (&self.kind, &self.namespace, &self.name) == (&key.kind, &key.namespace, &key.name)
    }
}

/// An event of this object of which nothing else is known.
pub(crate) fn blank(key: &ObjectKey) -> ObjectEvent {
    ObjectEvent {
        kind: key.kind.clone(),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        ..ObjectEvent::default()
    }
}

/// The events of an object.
pub(crate) fn of(record: &Record) -> impl Iterator<Item = ObjectEvent> + '_ {
    let key = record.key();
    let (state, events) = (row(record).style(), &record.drumlin.events);
    let last = events.len().saturating_sub(1);
    let events = events.iter().enumerate();
    events.map(move |(index, event)| ObjectEvent {
        time: event.time.clone(),
        reason: event.reason.clone(),
        count: event.count,
        message: event.message.clone(),
        style: if index == last { state } else { Style::new() },
        ..blank(&key)
    })
}

/// Events as a table, with colours: whoever prints it removes them where they do not belong.
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
    let mut table = String::new();
    align(&mut table, &lines);
    let styles = events.iter().map(|event| event.style);
    // The first line is that of the heads.
    for (line, style) in table.lines().zip(once(Style::new()).chain(styles)) {
        let _ = writeln!(text, "{style}{line}{style:#}");
    }
    text
}
