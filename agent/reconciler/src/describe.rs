//! One object for a person: its state, what it waits for, what belongs to it, and its last events. From the state files
//! alone.

mod tree;

use std::{fmt::Write, path::Path};

use drumlin_crd::ObjectKey;

use crate::{
    Error,
    age::age,
    events,
    record::{Body, Of, Record},
    status::{Row, align, row, shown},
    store::{self, DIRECTORY},
};

/// Describes an object.
///
/// # Errors
/// When the state files cannot be read, or there is no object with this key.
pub fn describe(state_dir: &Path, key: &ObjectKey) -> Result<String, Error> {
    let (records, unreadable) = store::load(&state_dir.join(DIRECTORY))?;
    let mut found = records.iter();
    let Some(record) = found.find(|record| record.key() == *key) else {
        let file = store::path(&state_dir.join(DIRECTORY), key)?;
        let mut unreadable = unreadable.iter();
        return Err(match unreadable.find(|one| one.path == file) {
            Some(one) => store::could_not_read(&one.path, &one.why),
            None => store::missing(key),
        });
    };
    let mut text = String::new();
    fields(&mut text, record);
    conditions(&mut text, record);
    text.push_str("Tree:\n");
    text.push_str(&tree::tree(record, &records));
    let events: Vec<_> = events::of(record).collect();
    text.push_str("Events:\n");
    let table = events::render(&events);
    for line in table.lines() {
        let _ = writeln!(text, "  {line}");
    }
    Ok(text)
}

/// The fields, a line each; those without a value are left out.
fn fields(text: &mut String, record: &Record) {
    let Row {
        kind,
        namespace,
        name,
        capacity,
        mount,
        class,
        policy,
        handle,
        group,
        ..
    } = row(record);
    let wanted = match &record.body {
        Body::Volume(Of { spec, .. }) => spec.capacity.to_string(),
        _ => String::new(),
    };
    let book = &record.drumlin;
    let made = record.metadata.creation_timestamp.as_ref();
    let since = book.orphan_since.as_ref();
    for (field, value) in [
        ("Object", format!("{kind}/{namespace}/{name}")),
        ("Manifest", format!("{}:{}", book.file, book.line)),
        ("Orphan since", since.cloned().unwrap_or_default()),
        (
            "Created",
            made.map(|made| made.0.to_string()).unwrap_or_default(),
        ),
        ("Class", class),
        ("Requested", wanted),
        ("Capacity", capacity),
        ("Mount", mount),
        ("Group", group),
        ("Policy", policy),
        ("Handle", handle),
    ] {
        if !value.is_empty() {
            let _ = writeln!(text, "{:<14}{}", format!("{field}:"), shown(&value));
        }
    }
}

/// The conditions, and the call that failed last.
fn conditions(text: &mut String, record: &Record) {
    let conditions = record.conditions();
    if conditions.is_empty() {
        text.push_str("Conditions:   none yet: it was not reconciled\n");
        return;
    }
    let head = ["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(conditions.iter().map(|condition| {
        vec![
            condition.type_.clone(),
            condition.status.clone(),
            age(&condition.last_transition_time.0.to_string()).unwrap_or_default(),
            condition.reason.clone(),
            shown(&condition.message),
        ]
    }));
    let mut table = String::new();
    align(&mut table, &lines);
    text.push_str("Conditions:\n");
    for line in table.lines() {
        let _ = writeln!(text, "  {line}");
    }
    if record.observed_generation() != record.generation() {
        text.push_str("  (of an earlier version of its manifest)\n");
    }
    if let Some(last) = record.clone().last_operation() {
        let next = last.next_retry_time.as_deref().unwrap_or("not planned");
        let _ = writeln!(
            text,
            "Waits for:    {}, which failed {} times with {}; next attempt {next}",
            last.rpc, last.attempts, last.code
        );
    } else if let Some(ready) = record
        .condition("Ready")
        .filter(|ready| ready.status != "True")
        && record.drumlin.orphan_since.is_none()
        && !record.drumlin.destroyed
    {
        let _ = writeln!(text, "Waits for:    {}", shown(&ready.message));
    }
}
