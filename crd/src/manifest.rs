//! Reads manifests: several documents, strictly, with a line number for every problem.

use std::{collections::BTreeMap, fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize, de::DeserializeOwned, de::IgnoredAny};

use crate::{
    GroupSnapshot, GroupSnapshotSpec, Snapshot, SnapshotSchedule, SnapshotScheduleSpec,
    SnapshotSpec, Volume, VolumeGroup, VolumeGroupSpec, VolumeSpec, annotations,
    names::{self, API_VERSION, GROUP},
    validate::{self, FieldError},
    yaml::{self, Location, Value, YamlError},
};

/// Maximum number of documents in a manifest.
pub const DOCUMENTS: usize = 10_000;

/// Maximum number of reported problems of a text: each requires parsing it again.
const PROBLEMS: usize = 100;

/// A group that differs from ours by so many letters, for a kind of ours, is taken for a mistyped one.
const MISTYPED: usize = 4;

/// The kinds of this project.
const KINDS: [&str; 5] = [
    "Volume",
    "VolumeGroup",
    "Snapshot",
    "GroupSnapshot",
    "SnapshotSchedule",
];

/// Key of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// Its kind, such as `Volume`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
    }
}

/// A validated object of one of the kinds.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A volume.
    Volume(Box<Volume>),
    /// A snapshot.
    Snapshot(Box<Snapshot>),
    /// A group of volumes.
    Group(Box<VolumeGroup>),
    /// A snapshot of a group.
    GroupSnapshot(Box<GroupSnapshot>),
    /// Snapshots at regular times.
    Schedule(Box<SnapshotSchedule>),
}

impl Object {
    /// The key of the object.
    pub fn key(&self) -> ObjectKey {
        let kind = match self {
            Self::Volume(_) => "Volume",
            Self::Snapshot(_) => "Snapshot",
            Self::Group(_) => "VolumeGroup",
            Self::GroupSnapshot(_) => "GroupSnapshot",
            Self::Schedule(_) => "SnapshotSchedule",
        };
        let metadata = self.metadata();
        ObjectKey {
            kind: kind.to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    /// Its metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Volume(volume) => &volume.metadata,
            Self::Snapshot(snapshot) => &snapshot.metadata,
            Self::Group(group) => &group.metadata,
            Self::GroupSnapshot(snapshot) => &snapshot.metadata,
            Self::Schedule(schedule) => &schedule.metadata,
        }
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self.metadata().annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    /// The node that it names, if any.
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Volume(volume) => volume.spec.node_name.as_deref(),
            Self::Snapshot(snapshot) => snapshot.spec.node_name.as_deref(),
            Self::Group(group) => group.spec.node_name.as_deref(),
            Self::GroupSnapshot(snapshot) => snapshot.spec.node_name.as_deref(),
            Self::Schedule(schedule) => schedule.spec.node_name.as_deref(),
        }
    }

    /// Violations of immutability, compared with the earlier version of the object.
    pub fn wrong_after(&self, old: &Self) -> Vec<FieldError> {
        match (old, self) {
            (Self::Volume(old), Self::Volume(new)) => validate::volume_update(&old.spec, &new.spec),
            (Self::Snapshot(old), Self::Snapshot(new)) => {
                validate::snapshot_update(&old.spec, &new.spec)
            }
            (Self::Group(old), Self::Group(new)) => validate::group_update(&old.spec, &new.spec),
            (Self::GroupSnapshot(old), Self::GroupSnapshot(new)) => {
                validate::group_snapshot_update(&old.spec, &new.spec)
            }
            (Self::Schedule(old), Self::Schedule(new)) => {
                validate::schedule_update(&old.spec, &new.spec)
            }
            _ => Vec::new(),
        }
    }
}

/// An object and its position in the manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The object.
    pub object: Object,
    /// The line, from 1, on which its document begins.
    pub line: usize,
    /// The source text of its fields.
    origin: Origin,
}

/// The text of a document, and the position of the object in it: at the top, or within a list.
#[derive(Debug, Clone, PartialEq)]
struct Origin {
    text: Arc<str>,
    /// The line, from 1, on which the text begins.
    line: usize,
    within: Vec<String>,
}

impl Origin {
    /// The position of a field of the object.
    fn place(&self, field: &str) -> Location {
        self.below(Location::of_field(&self.text, &self.within, field))
    }

    /// Converts a position within the text to one within the manifest.
    fn below(&self, place: Location) -> Location {
        Location {
            line: self.line + place.line - 1,
            ..place
        }
    }
}

impl Document {
    /// The position of a field such as `spec.mount.path`.
    pub fn place_of(&self, field: &str) -> Location {
        self.origin.place(field)
    }
}

/// A problem and its position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    #[serde(default = "first_column")]
    pub column: usize,
    /// The object, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectKey>,
    /// Description of the problem, beginning with the field.
    pub message: String,
}

fn first_column() -> usize {
    1
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} column {}: ", self.line, self.column)?;
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// The contents of a manifest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifest {
    /// The objects of the kinds of this project.
    pub documents: Vec<Document>,
    /// Documents of other API groups, as `apiVersion/kind`; they are ignored.
    pub foreign: Vec<String>,
}

/// The type fields of a document; empty if missing or not strings.
struct Head<'a> {
    api_version: &'a str,
    kind: &'a str,
    items: Option<&'a Vec<Value>>,
}

impl<'a> Head<'a> {
    fn of(value: &'a Value) -> Self {
        let text = |key| value.get(key).and_then(Value::as_str).unwrap_or_default();
        Self {
            api_version: text("apiVersion"),
            kind: text("kind"),
            items: value.get("items").and_then(Value::as_sequence),
        }
    }
}

/// A complete document. Fields written by a server are accepted, so that the output of `kubectl get -o yaml` is a valid
/// manifest.
#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a map with apiVersion, kind, metadata and spec"
)]
struct Full<S> {
    #[serde(rename = "apiVersion")]
    _api_version: IgnoredAny,
    #[serde(rename = "kind")]
    _kind: IgnoredAny,
    metadata: Metadata,
    spec: S,
    #[serde(default, rename = "status")]
    _status: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a map such as {name: data}"
)]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default, rename = "uid")]
    _uid: Option<IgnoredAny>,
    #[serde(default, rename = "resourceVersion")]
    _resource_version: Option<IgnoredAny>,
    #[serde(default, rename = "generation")]
    _generation: Option<IgnoredAny>,
    #[serde(default, rename = "creationTimestamp")]
    _creation_timestamp: Option<IgnoredAny>,
    #[serde(default, rename = "deletionTimestamp")]
    _deletion_timestamp: Option<IgnoredAny>,
    #[serde(default, rename = "deletionGracePeriodSeconds")]
    _deletion_grace_period_seconds: Option<IgnoredAny>,
    #[serde(default, rename = "managedFields")]
    _managed_fields: Option<IgnoredAny>,
    #[serde(default, rename = "finalizers")]
    _finalizers: Option<IgnoredAny>,
    #[serde(default, rename = "ownerReferences")]
    _owner_references: Option<IgnoredAny>,
    #[serde(default, rename = "selfLink")]
    _self_link: Option<IgnoredAny>,
}

/// Reads a manifest, YAML or JSON. It is used only if all of it is valid.
///
/// # Errors
/// The problems, each with its position; up to a maximum number.
pub fn read(text: &str) -> Result<Manifest, Vec<Problem>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader::default();
    for (line, part) in split(text) {
        reader.document(&Origin {
            text: part.into(),
            line,
            within: Vec::new(),
        });
        if reader.manifest.documents.len() > DOCUMENTS {
            return Err(vec![Problem {
                line,
                column: 1,
                object: None,
                message: format!("more than {DOCUMENTS} objects"),
            }]);
        }
        if reader.problems.len() >= PROBLEMS {
            break;
        }
    }
    if reader.problems.is_empty() {
        Ok(reader.manifest)
    } else {
        let place = |problem: &Problem| (problem.line, problem.column);
        reader.problems.sort_by_key(place);
        Err(reader.problems)
    }
}

/// Splits a text into documents, each with its first line, from 1.
fn split(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut begin, mut begin_line, mut offset) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let end = offset + line.len();
        let marker = line.trim_end();
        if marker == "---" || marker == "..." || marker.starts_with("--- ") {
            parts.push((begin_line, text.get(begin..offset).unwrap_or_default()));
            // Text after the marker belongs to the next document.
            begin = if marker.starts_with("--- ") {
                offset + 3
            } else {
                end
            };
            begin_line = if marker.starts_with("--- ") {
                index + 1
            } else {
                index + 2
            };
        }
        offset = end;
    }
    parts.push((begin_line, text.get(begin..).unwrap_or_default()));
    parts
}

/// Returns true if the group of a version, which is not ours, is nearly ours.
fn is_mistyped(api_version: &str) -> bool {
    let group = api_version.split('/').next().unwrap_or_default();
    strsim::osa_distance(&group.to_lowercase(), GROUP) <= MISTYPED
}

#[derive(Default)]
struct Reader {
    manifest: Manifest,
    problems: Vec<Problem>,
}

impl Reader {
    fn problem(&mut self, place: Location, object: Option<ObjectKey>, message: String) {
        self.problems.push(Problem {
            line: place.line,
            column: place.column,
            object,
            message,
        });
    }

    fn error(&mut self, origin: &Origin, error: YamlError) {
        let YamlError {
            line,
            column,
            message,
        } = error;
        self.problem(origin.below(Location { line, column }), None, message);
    }

    fn document(&mut self, origin: &Origin) {
        let parsed = match yaml::parse(&origin.text) {
            Ok(parsed) => parsed,
            Err(error) => return self.error(origin, error),
        };
        if parsed.value.is_null() {
            return;
        }
        let foreign = self.manifest.foreign.len();
        let top = Location::of(&origin.text, &[]).line;
        self.value(parsed.value, origin, top);
        if self.manifest.foreign.len() > foreign {
            return;
        }
        // kubectl would read the same file differently, or refuse it.
        for (place, word) in parsed.ambiguous {
            let message = format!(
                "kubectl reads `{word}` without quotes as a boolean or a number: put it in quotes"
            );
            self.problem(origin.below(place), None, message);
        }
    }

    /// Reads an object, or a list of objects, that begins on this line of the text.
    fn value(&mut self, value: Value, origin: &Origin, line: usize) {
        let here = origin.below(Location { line, column: 1 });
        let mut head = Head::of(&value);
        let (api_version, kind) = (head.api_version, head.kind);
        if kind == "List" && (api_version == "v1" || api_version == API_VERSION) {
            let lines = Location::lines_of_items(&origin.text);
            for (index, item) in head.items.take().into_iter().flatten().enumerate() {
                if self.problems.len() >= PROBLEMS {
                    return;
                }
                let origin = Origin {
                    within: vec!["items".to_owned(), index.to_string()],
                    ..origin.clone()
                };
                let line = lines.get(index).copied().unwrap_or(line);
                self.value(item.clone(), &origin, line);
            }
            return;
        }
        let group = api_version.split_once('/').map(|(group, _)| group);
        match (group, api_version, kind) {
            (Some(GROUP), API_VERSION, "Volume") => self.object(value, origin, here, make_volume),
            (Some(GROUP), API_VERSION, "Snapshot") => {
                self.object(value, origin, here, make_snapshot);
            }
            (Some(GROUP), API_VERSION, "VolumeGroup") => {
                self.object(value, origin, here, make_group);
            }
            (Some(GROUP), API_VERSION, "GroupSnapshot") => {
                self.object(value, origin, here, make_group_snapshot);
            }
            (Some(GROUP), API_VERSION, "SnapshotSchedule") => {
                self.object(value, origin, here, make_schedule);
            }
            (Some(GROUP), API_VERSION, _) => {
                let near = yaml::nearest(kind, KINDS);
                let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
                let message = format!(
                    "kind: {kind:?} is unknown; use Volume, VolumeGroup, Snapshot, GroupSnapshot or SnapshotSchedule{hint}"
                );
                self.problem(origin.place("kind"), None, message);
            }
            (Some(GROUP), ..) => {
                let message = format!(
                    "apiVersion: {api_version} is unknown; this agent supports {API_VERSION}"
                );
                self.problem(origin.place("apiVersion"), None, message);
            }
            (_, "", _) => self.problem(
                here,
                None,
                "apiVersion is missing or not a string".to_owned(),
            ),
            (_, _, "") => self.problem(here, None, "kind is missing or not a string".to_owned()),
            _ if KINDS.contains(&kind) && is_mistyped(api_version) => {
                let message =
                    format!("apiVersion: {api_version:?} is unknown; did you mean {API_VERSION}?");
                self.problem(origin.place("apiVersion"), None, message);
            }
            _ => self.manifest.foreign.push(format!("{api_version}/{kind}")),
        }
    }

    fn object<S: DeserializeOwned>(
        &mut self,
        value: Value,
        origin: &Origin,
        here: Location,
        make: impl FnOnce(ObjectMeta, S) -> CheckedObject,
    ) {
        let most = PROBLEMS - self.problems.len();
        let mut read = yaml::leniently::<Full<S>>(value, &origin.text, &origin.within, most);
        let is_whole = read.problems.is_empty();
        for error in std::mem::take(&mut read.problems) {
            self.error(origin, error);
        }
        let Some(full) = read.value.take() else {
            return self.metadata_alone(&read.rest, origin);
        };
        let mut wrong = check_metadata(&full.metadata);
        let metadata = ObjectMeta {
            namespace: Some(
                full.metadata
                    .namespace
                    .unwrap_or_else(|| "default".to_owned()),
            ),
            name: Some(full.metadata.name),
            labels: full.metadata.labels,
            annotations: full.metadata.annotations,
            ..ObjectMeta::default()
        };
        let (object, more) = make(metadata, full.spec);
        wrong.extend(more);
        for error in &mut wrong {
            error.field = read.original(&error.field);
        }
        // What was left out cannot be judged.
        wrong.retain(|wrong| !read.is_wrong(&wrong.field));
        for FieldError { field, message } in &wrong {
            let message = format!("{field}: {message}");
            self.problem(origin.place(field), Some(object.key()), message);
        }
        if wrong.is_empty() && is_whole {
            self.manifest.documents.push(Document {
                object,
                line: here.line,
                origin: origin.clone(),
            });
        }
    }

    /// Checks the metadata of an object whose spec cannot be read.
    fn metadata_alone(&mut self, value: &Value, origin: &Origin) {
        let metadata = value.get("metadata").cloned();
        let Some(Ok(metadata)) = metadata.map(|value| yaml::from_value(value, "")) else {
            return;
        };
        for FieldError { field, message } in check_metadata(&metadata) {
            let place = origin.place(&field);
            self.problem(place, None, format!("{field}: {message}"));
        }
    }
}

/// A kind of object with a validated spec.
pub(crate) type CheckedObject = (Object, Vec<FieldError>);

pub(crate) fn make_volume(metadata: ObjectMeta, spec: VolumeSpec) -> CheckedObject {
    let wrong = validate::volume(&spec);
    let mut volume = Volume::new("", spec);
    volume.metadata = metadata;
    (Object::Volume(Box::new(volume)), wrong)
}

pub(crate) fn make_snapshot(metadata: ObjectMeta, spec: SnapshotSpec) -> CheckedObject {
    let wrong = validate::snapshot(&spec);
    let mut snapshot = Snapshot::new("", spec);
    snapshot.metadata = metadata;
    (Object::Snapshot(Box::new(snapshot)), wrong)
}

pub(crate) fn make_group(metadata: ObjectMeta, spec: VolumeGroupSpec) -> CheckedObject {
    let wrong = validate::group(&spec);
    let mut group = VolumeGroup::new("", spec);
    group.metadata = metadata;
    (Object::Group(Box::new(group)), wrong)
}

pub(crate) fn make_group_snapshot(metadata: ObjectMeta, spec: GroupSnapshotSpec) -> CheckedObject {
    let wrong = validate::group_snapshot(&spec);
    let mut snapshot = GroupSnapshot::new("", spec);
    snapshot.metadata = metadata;
    (Object::GroupSnapshot(Box::new(snapshot)), wrong)
}

pub(crate) fn make_schedule(metadata: ObjectMeta, spec: SnapshotScheduleSpec) -> CheckedObject {
    let name = metadata.name.as_deref().unwrap_or_default();
    let wrong = validate::schedule(name, &spec);
    let mut schedule = SnapshotSchedule::new("", spec);
    schedule.metadata = metadata;
    (Object::Schedule(Box::new(schedule)), wrong)
}

fn check_metadata(metadata: &Metadata) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    let mut refuse = |field: &str, message: &str| {
        wrong.push(FieldError {
            field: field.to_owned(),
            message: message.to_owned(),
        });
    };
    if !names::is_subdomain(&metadata.name) {
        refuse(
            "metadata.name",
            "must be lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit",
        );
    }
    if metadata
        .namespace
        .as_ref()
        .is_some_and(|namespace| !names::is_label(namespace))
    {
        refuse(
            "metadata.namespace",
            "must be 1 to 63 lower-case letters, digits and '-'",
        );
    }
    wrong.extend(annotations::problems(
        metadata.annotations.as_ref(),
        metadata.labels.as_ref(),
    ));
    wrong
}
