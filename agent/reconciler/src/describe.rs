//! One object: its state, what it waits for, what belongs to it, and its last events. From the state files alone.

mod tree;

use std::{fmt::Write, iter::once, path::Path};

use anstyle::Style;
use drumlin_crd::{LastOperation, ObjectKey};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde::Serialize;

use self::tree::Node;
use crate::{
    Error,
    age::age,
    colours::RED,
    count::counted,
    events::{self, ObjectEvent},
    record::{Body, Of, Record},
    status::{FileProblem, Form, Row, align, shown, shown_row},
    store::{self, DIRECTORY, SourceState},
};

/// An object with what belongs to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// Its row in the status.
    #[serde(flatten)]
    row: Row,
    /// The line of its manifest in its file, if it is in a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// When it was created, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    /// The size that the manifest of a volume requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    requested: Option<String>,
    /// Its conditions.
    conditions: Vec<Condition>,
    /// True if they are about its manifest as it is now.
    observed: bool,
    /// What is wrong in its file, of which the last valid version applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<FileProblem>,
    /// The call that failed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_operation: Option<LastOperation>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    /// The tree that it is in, from the object that all others come from.
    tree: Node,
    /// Its last events, oldest first.
    events: Vec<ObjectEvent>,
}

/// Describes an object.
///
/// # Errors
/// When the state files cannot be read, or there is no object with this key.
pub fn describe(state_dir: &Path, key: &ObjectKey) -> Result<Description, Error> {
    let root = state_dir.join(DIRECTORY);
    let (records, unreadable) = store::load(&root)?;
    let mut found = records.iter();
    let Some(record) = found.find(|record| record.key() == *key) else {
        let file = store::path(&root, key)?;
        let mut unreadable = unreadable.iter();
        return Err(match unreadable.find(|one| one.path == file) {
            Some(one) => store::could_not_read(&one.path, &one.why),
            None => store::missing(key),
        });
    };
    let source = store::load_source(&root).unwrap_or_default();
    let created = record.metadata.creation_timestamp.as_ref();
    let last_operation = record.clone().last_operation().take();
    Ok(Description {
        row: shown_row(record, source.pruning().as_ref()),
        line: record.place().map(|(_, line)| line),
        created: created.map(|created| created.0.to_string()),
        requested: match &record.body {
            Body::Volume(Of { spec, .. }) => Some(spec.capacity.to_string()),
            _ => None,
        },
        conditions: record.conditions().to_vec(),
        observed: record.observed_generation() == record.generation(),
        problems: problems(&source, record),
        waits_for: waits_for(record, last_operation.as_ref()),
        last_operation,
        tree: tree::tree(record, &records),
        events: events::of(record).collect(),
    })
}

/// What is wrong in the file of an object, or with a manifest of it in another one.
fn problems(source: &SourceState, record: &Record) -> Vec<FileProblem> {
    let key = record.key();
    let is_its = |found: &FileProblem| {
        found.file == record.drumlin.file || found.problem.object.as_ref() == Some(&key)
    };
    source.problems().into_iter().filter(is_its).collect()
}

/// What an object waits for: the next attempt of the call that failed, or what its condition says.
fn waits_for(record: &Record, last_operation: Option<&LastOperation>) -> Option<String> {
    if let Some(last) = last_operation {
        let next = last.next_retry_time.as_deref();
        let at = |text: &str| text.parse::<Timestamp>().ok();
        // It is written when its attempts have doubled, and not for each of them.
        let is_over = next
            .and_then(at)
            .is_some_and(|next| next < Timestamp::now());
        let (least, next) = match next {
            Some(_) if is_over => ("at least ", "it is attempted again and again".to_owned()),
            Some(next) => ("", format!("next attempt {next}")),
            None => ("", "next attempt not planned".to_owned()),
        };
        return Some(format!(
            "{}, which failed {least}{} with {}; {next}",
            last.rpc,
            counted(last.attempts, "time"),
            last.code
        ));
    }
    let ready = record.condition("Ready")?;
    let waits = ready.status != "True"
        && record.drumlin.orphan_since.is_none()
        && !record.drumlin.destroyed;
    // The field says already that it waits.
    let what = ready.message.strip_prefix("waiting for ");
    waits.then(|| what.unwrap_or(&ready.message).to_owned())
}

impl Description {
    /// The description as text; for people with colours: whoever prints it removes them where they do not belong.
    pub fn render(&self, form: Form) -> String {
        if let Some(data) = form.data(self) {
            return data;
        }
        let mut text = String::new();
        self.fields(&mut text);
        self.conditions(&mut text);
        text.push_str("Tree:\n");
        let Row {
            kind,
            namespace,
            name,
            ..
        } = &self.row;
        let key = ObjectKey {
            kind: kind.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
        };
        text.push_str(&self.tree.render(&key));
        text.push_str("Events:\n");
        for line in events::render(&self.events).lines() {
            let _ = writeln!(text, "  {line}");
        }
        text
    }

    /// The fields, a line each; those without a value are left out.
    fn fields(&self, text: &mut String) {
        let Row {
            kind,
            namespace,
            name,
            ..
        } = &self.row;
        let row = &self.row;
        let object = format!("{kind}/{namespace}/{name}");
        let manifest = self.line.map(|line| format!("{}:{line}", row.file));
        // What is in no file comes from an API server or a schedule.
        let origin = self.line.is_none().then_some(&row.file);
        for (field, value) in [
            ("Object", Some(&object)),
            ("Manifest", manifest.as_ref()),
            ("From", origin),
            ("Orphan since", row.orphan_since.as_ref()),
            ("Created", self.created.as_ref()),
            ("Class", Some(&row.class)),
            ("Requested", self.requested.as_ref()),
            ("Capacity", Some(&row.capacity)),
            ("Mount", Some(&row.mount)),
            ("Group", Some(&row.group)),
            ("Policy", Some(&row.policy)),
            ("Handle", Some(&row.handle)),
        ] {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                let _ = writeln!(text, "{:<14}{}", format!("{field}:"), shown(value));
            }
        }
    }

    /// The conditions, those of its state in the colour of that, and what it waits for.
    fn conditions(&self, text: &mut String) {
        if self.conditions.is_empty() {
            text.push_str("Conditions:   none yet: it was not reconciled\n");
            return;
        }
        let head = ["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        lines.extend(self.conditions.iter().map(|condition| {
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
        let state = self.row.style();
        let styles = self.conditions.iter().map(|condition| {
            if ["Ready", "Stalled"].contains(&condition.type_.as_str()) {
                state
            } else {
                Style::new()
            }
        });
        // The first line is that of the heads.
        for (line, style) in table.lines().zip(once(Style::new()).chain(styles)) {
            let _ = writeln!(text, "  {style}{line}{style:#}");
        }
        if !self.observed {
            text.push_str("  (of an earlier version of its manifest)\n");
        }
        for problem in &self.problems {
            let _ = writeln!(
                text,
                "  {RED}{problem}{RED:#} (its last valid version applies)"
            );
        }
        if let Some(what) = &self.waits_for {
            let _ = writeln!(text, "Waits for:    {state}{}{state:#}", shown(what));
        }
    }
}
