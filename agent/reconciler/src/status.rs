//! The status table for the operator, from the state files alone: the daemon may be down.

use std::{
    fmt::{self, Write},
    iter::once,
    path::Path,
};

use anstyle::Style;
use drumlin_crd::{MemberSnapshot, ObjectKey, Problem, Quantity};
use serde::Serialize;
use serde_json::json;

use crate::{
    Error,
    colours::{RED, YELLOW},
    count::elsewhere,
    prune::Pruning,
    record::{Body, Of, Record},
    source::file_name::Entry,
    store::{self, DIRECTORY},
};

/// One object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `True` or `False`.
    pub ready: String,
    /// Its size.
    pub capacity: String,
    /// Where it is mounted.
    pub mount: String,
    /// The reason of its `Ready` condition.
    pub reason: String,
    /// The message of its `Ready` condition.
    pub message: String,
    /// The file of its manifest.
    pub file: String,
    /// Since when it has no manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub orphan_since: Option<String>,
    /// When its data is destroyed although nobody asks for it any more, for people; of an orphan that is pruned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruned: Option<String>,
    /// Its device class.
    pub class: String,
    /// Its deletion policy.
    pub policy: String,
    /// Its handle.
    pub handle: String,
    /// The group that it is a member or a snapshot of.
    pub group: String,
    /// True if it needs a person.
    #[serde(skip)]
    pub(crate) is_stalled: bool,
    /// True if it is to be deleted or released, or was.
    #[serde(skip)]
    pub is_absent: bool,
}

impl Row {
    /// True if there is nothing to do for it.
    fn is_done(&self) -> bool {
        self.orphan_since.is_none()
            && (self.ready == "True" || matches!(self.reason.as_str(), "Deleted" | "Released"))
    }

    /// The colour of its state.
    pub(crate) fn style(&self) -> Style {
        match (self.is_done(), self.is_stalled) {
            (true, _) => Style::new(),
            (false, true) => RED,
            (false, false) => YELLOW,
        }
    }
}

/// The complete status table.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusTable {
    /// The directory of manifests.
    pub directory: String,
    /// The error if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// All objects, by kind, namespace and name.
    pub objects: Vec<Row>,
    /// The problems of manifest files.
    pub problems: Vec<FileProblem>,
    /// Files and subdirectories that may be meant as manifests, and are ignored.
    pub ignored_files: Vec<String>,
    /// Number of objects of other nodes.
    pub elsewhere: usize,
    /// State files that cannot be read.
    pub unreadable: Vec<String>,
}

/// A problem of a manifest file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileProblem {
    /// The file.
    pub file: String,
    /// The problem and its position.
    #[serde(flatten)]
    pub problem: Problem,
}

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, problem } = self;
        write!(f, "INVALID {file}:{}:{}: ", problem.line, problem.column)?;
        if let Some(object) = &problem.object {
            write!(f, "{object}: ")?;
        }
        f.write_str(&problem.message)
    }
}

/// The output format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The most important columns.
    Table,
    /// All columns.
    Wide,
    /// For programs.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Form {
    /// What programs read; none for what people read.
    pub fn data(self, shown: &impl Serialize) -> Option<String> {
        match self {
            Self::Table | Self::Wide => None,
            Self::Json => Some(serde_json::to_string_pretty(shown).unwrap_or_default() + "\n"),
            Self::Yaml => Some(drumlin_crd::to_yaml(&json!(shown))),
        }
    }
}

/// Reads the state below the agent's state directory.
///
/// # Errors
/// When the directory cannot be read. A missing directory is an empty table.
pub fn load(state_dir: &Path) -> Result<StatusTable, Error> {
    // A name that was mistyped is no host without objects: whoever watches this would see that all is well.
    // Where it may not be looked at, reading it says so.
    if matches!(state_dir.try_exists(), Ok(false)) {
        return Err(Error::State(format!(
            "state directory {} does not exist; --state-dir names that of the agent",
            state_dir.display()
        )));
    }
    let root = state_dir.join(DIRECTORY);
    let (records, unreadable) = store::load(&root)?;
    let source = store::load_source(&root).unwrap_or_default();
    let problems = source.problems();
    let pruning = source.pruning();
    let objects = records
        .iter()
        .map(|record| shown_row(record, pruning.as_ref()))
        .collect();
    Ok(StatusTable {
        directory: source.directory,
        unavailable: source.unavailable,
        problems,
        ignored_files: source.ignored,
        elsewhere: source.elsewhere,
        objects,
        unreadable: unreadable.iter().map(ToString::to_string).collect(),
    })
}

/// The row of an object; of an orphan that is pruned also that.
pub(crate) fn shown_row(record: &Record, pruning: Option<&Pruning<'_>>) -> Row {
    let pruned = pruning.and_then(|pruning| pruning.told(record));
    let mut row = row(record);
    if let Some(pruned) = &pruned {
        row.message.push_str("; ");
        row.message.push_str(pruned);
    }
    row.pruned = pruned;
    row
}

pub(crate) fn row(record: &Record) -> Row {
    let ObjectKey {
        kind,
        namespace,
        name,
    } = record.key();
    let text = |value: Option<&Quantity>| value.map(ToString::to_string).unwrap_or_default();
    let (capacity, mount, class) = match &record.body {
        Body::Volume(Of { status, .. }) => (
            text(status.capacity.as_ref()),
            status.mount_path.clone().unwrap_or_default(),
            status.device_class.clone().unwrap_or_default(),
        ),
        Body::Snapshot(Of { status, .. }) => (
            text(status.restore_size.as_ref()),
            String::new(),
            String::new(),
        ),
        Body::GroupSnapshot(Of { status, .. }) => {
            (total(&status.members), String::new(), String::new())
        }
        Body::Group(_) | Body::Schedule(_) => Default::default(),
    };
    let ready = record.condition("Ready");
    let mut row = Row {
        kind,
        namespace,
        name,
        ready: ready
            .map_or("False", |ready| ready.status.as_str())
            .to_owned(),
        capacity,
        mount,
        reason: ready
            .map_or("Pending", |ready| ready.reason.as_str())
            .to_owned(),
        message: ready
            .map_or("not reconciled yet", |ready| ready.message.as_str())
            .to_owned(),
        file: record.drumlin.file.clone(),
        is_stalled: record.condition("Stalled").is_some(),
        is_absent: record.is_absent(),
        orphan_since: record.drumlin.orphan_since.clone(),
        pruned: None,
        class,
        policy: record.body.kind().deletion_policy().as_str().to_owned(),
        handle: record.handle().unwrap_or_default().to_owned(),
        group: match &record.body {
            Body::Volume(Of { status, .. }) => status.group_name.clone(),
            Body::GroupSnapshot(Of { spec, .. }) => Some(spec.group_name.clone()),
            Body::Schedule(Of { spec, .. }) => spec.target.group_name.clone(),
            _ => None,
        }
        .unwrap_or_default(),
    };
    if let Some(since) = &record.drumlin.orphan_since {
        "Orphan".clone_into(&mut row.reason);
        row.message = format!(
            "in no manifest since {since}; retained (last in {})",
            row.file
        );
    }
    row
}

/// The total size of volumes of all members.
fn total(members: &[MemberSnapshot]) -> String {
    let sizes = members
        .iter()
        .filter_map(|member| member.restore_size.as_ref());
    let bytes = sizes.filter_map(|size| size.bytes().ok()).sum();
    if bytes == 0 {
        return String::new();
    }
    Quantity::from_bytes(bytes).to_string()
}

impl StatusTable {
    /// Returns true if all objects are ready and every file is valid.
    pub fn is_all_ready(&self) -> bool {
        self.unavailable.is_none()
            && self.problems.is_empty()
            && self.unreadable.is_empty()
            && self.objects.iter().all(Row::is_done)
    }

    /// The table as text; for people with colours: whoever prints it removes them where they do not belong.
    pub fn render(&self, form: Form) -> String {
        if let Some(data) = form.data(self) {
            return data;
        }
        let mut lines = vec![
            columns(form)
                .into_iter()
                .map(|(name, _)| name.to_owned())
                .collect::<Vec<_>>(),
        ];
        for row in &self.objects {
            lines.push(
                columns(form)
                    .into_iter()
                    .map(|(_, value)| shown(value(row)))
                    .collect(),
            );
        }
        let mut text = String::new();
        if self.objects.is_empty() {
            text.push_str("no objects\n");
        } else {
            let mut table = String::new();
            align(&mut table, &lines);
            let styles = self.objects.iter().map(Row::style);
            // The first line is that of the heads.
            for (line, style) in table.lines().zip(once(Style::new()).chain(styles)) {
                let _ = writeln!(text, "{style}{line}{style:#}");
            }
        }
        if let Some(why) = &self.unavailable {
            let _ = writeln!(text, "SourceUnavailable: {why}; no object is changed");
        }
        for problem in &self.problems {
            let _ = writeln!(text, "{RED}{problem}{RED:#}");
        }
        text.push_str(&ignored(&self.ignored_files));
        for one in &self.unreadable {
            let _ = writeln!(text, "{RED}UNREADABLE {one}{RED:#}");
        }
        if self.elsewhere > 0 {
            text.push_str(&elsewhere(self.elsewhere));
        }
        text
    }
}

/// A line for each file that is ignored.
pub fn ignored(files: &[String]) -> String {
    let mut text = String::new();
    for file in files {
        let why = Entry::why_ignored(file);
        let _ = writeln!(
            text,
            "{YELLOW}IGNORED {}: {why}; nothing is pruned meanwhile{YELLOW:#}",
            shown(file)
        );
    }
    text
}

type Column = (&'static str, fn(&Row) -> &str);

fn columns(form: Form) -> Vec<Column> {
    let mut columns: Vec<Column> = vec![
        ("KIND", |row| &row.kind),
        ("NAMESPACE", |row| &row.namespace),
        ("NAME", |row| &row.name),
        ("READY", |row| &row.ready),
        ("CAPACITY", |row| &row.capacity),
        ("MOUNT", |row| &row.mount),
        ("REASON", |row| &row.reason),
    ];
    if form == Form::Wide {
        columns.extend::<[Column; 5]>([
            ("GROUP", |row| &row.group),
            ("CLASS", |row| &row.class),
            ("POLICY", |row| &row.policy),
            ("HANDLE", |row| &row.handle),
            ("FILE", |row| &row.file),
        ]);
    }
    columns.push(("MESSAGE", |row| &row.message));
    columns
}

pub(crate) fn shown(value: &str) -> String {
    if value.is_empty() {
        return "-".to_owned();
    }
    // What would move the cursor or hide something, and nothing else: paths are copied from here.
    let shown = value.chars().map(|letter| match letter {
        '\'' | '"' | '\\' => letter.to_string(),
        _ => letter.escape_debug().to_string(),
    });
    shown.collect()
}

pub(crate) fn align(text: &mut String, lines: &[Vec<String>]) {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
}
