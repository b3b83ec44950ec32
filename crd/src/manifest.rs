//! Reading manifests: many documents, strictly, with a line for everything that is wrong.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize, de::DeserializeOwned, de::IgnoredAny};

use crate::{
    Snapshot, SnapshotSpec, Volume, VolumeSpec,
    names::{self, API_VERSION, GROUP},
    validate::{self, Wrong},
    yaml::{self, Value, line_of},
};

/// More documents than this are no manifest of a person's.
pub const DOCUMENTS: usize = 10_000;

/// Which object a manifest is about.
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

/// An object of one of our kinds, checked.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A volume.
    Volume(Box<Volume>),
    /// A snapshot.
    Snapshot(Box<Snapshot>),
}

impl Object {
    /// Which object it is.
    pub fn key(&self) -> ObjectKey {
        let kind = match self {
            Self::Volume(_) => "Volume",
            Self::Snapshot(_) => "Snapshot",
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
        }
    }

    /// One of its annotations.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self.metadata().annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    /// What this object may not be, given what it was.
    pub fn wrong_after(&self, old: &Self) -> Vec<Wrong> {
        match (old, self) {
            (Self::Volume(old), Self::Volume(new)) => validate::volume_update(&old.spec, &new.spec),
            (Self::Snapshot(old), Self::Snapshot(new)) => {
                validate::snapshot_update(&old.spec, &new.spec)
            }
            _ => Vec::new(),
        }
    }
}

/// An object and where it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The object.
    pub object: Object,
    /// The line, from 1, on which its document begins.
    pub line: usize,
    /// The text of its document, in which the lines of its fields are found.
    text: String,
}

impl Document {
    /// The line, from 1, on which a field such as `spec.mount.path` stands.
    pub fn line_of(&self, field: &str) -> usize {
        self.line + line_of(&self.text, &segments(field)) - 1
    }
}

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// The object, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectKey>,
    /// What is wrong, beginning with the field.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// What a manifest holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifest {
    /// The objects of our kinds.
    pub documents: Vec<Document>,
    /// Documents of other groups, as `apiVersion/kind`; they are none of our business.
    pub foreign: Vec<String>,
}

/// What every document begins with.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: Option<String>,
    kind: Option<String>,
    #[serde(default)]
    items: Option<Vec<Value>>,
}

/// A document in full. What a server writes is allowed, so that `kubectl get -o yaml` can be kept as a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
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
#[serde(deny_unknown_fields, rename_all = "camelCase")]
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

/// Reads a manifest, YAML or JSON. All of it is right, or none of it is used.
///
/// # Errors
/// Everything that is wrong, each with its line.
pub fn read(text: &str) -> Result<Manifest, Vec<Problem>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut manifest = Manifest::default();
    let mut problems = Vec::new();
    for (line, part) in split(text) {
        let mut reader = Reader {
            manifest: &mut manifest,
            problems: &mut problems,
            line,
            text: part,
        };
        reader.document();
        if manifest.documents.len() > DOCUMENTS {
            return Err(vec![Problem {
                line,
                object: None,
                message: format!("more than {DOCUMENTS} documents"),
            }]);
        }
    }
    if problems.is_empty() {
        Ok(manifest)
    } else {
        Err(problems)
    }
}

/// The documents of a text, each with the line, from 1, that it begins on.
fn split(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut begin, mut begin_line, mut offset) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let end = offset + line.len();
        let marker = line.trim_end();
        if marker == "---" || marker == "..." || marker.starts_with("--- ") {
            parts.push((begin_line, text.get(begin..offset).unwrap_or_default()));
            // What stands behind the marker belongs to the next document.
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

struct Reader<'a> {
    manifest: &'a mut Manifest,
    problems: &'a mut Vec<Problem>,
    line: usize,
    text: &'a str,
}

impl Reader<'_> {
    fn problem(&mut self, line: usize, object: Option<ObjectKey>, message: String) {
        self.problems.push(Problem {
            line: self.line + line.max(1) - 1,
            object,
            message,
        });
    }

    fn document(&mut self) {
        let value: Value = match serde_yaml::from_str(self.text) {
            Ok(Value::Null) => return,
            Ok(value) => value,
            Err(error) => {
                let error = yaml::YamlError::from(error);
                // A document of comments alone is none.
                if !error.message.contains("EndOfStream")
                    && !error.message.contains("end of stream")
                {
                    self.problem(error.line, None, error.message);
                }
                return;
            }
        };
        self.value(value, &[]);
    }

    fn value(&mut self, value: Value, place: &[String]) {
        let here = line_of(self.text, place);
        let head: Head = match yaml::from_value(value.clone(), self.text) {
            Ok(head) => head,
            Err(error) => return self.problem(here, None, error.message),
        };
        let api_version = head.api_version.unwrap_or_default();
        let kind = head.kind.unwrap_or_default();
        if kind == "List" && (api_version == "v1" || api_version == API_VERSION) {
            for (index, item) in head.items.unwrap_or_default().into_iter().enumerate() {
                self.value(item, &["items".to_owned(), index.to_string()]);
            }
            return;
        }
        let group = api_version.split_once('/').map(|(group, _)| group);
        match (group, api_version.as_str(), kind.as_str()) {
            (Some(GROUP), API_VERSION, "Volume") => {
                self.object(value, place, |metadata, spec: VolumeSpec| {
                    let wrong = validate::volume(&spec);
                    let mut volume = Volume::new("", spec);
                    volume.metadata = metadata;
                    (Object::Volume(Box::new(volume)), wrong)
                });
            }
            (Some(GROUP), API_VERSION, "Snapshot") => {
                self.object(value, place, |metadata, spec: SnapshotSpec| {
                    let wrong = validate::snapshot(&spec);
                    let mut snapshot = Snapshot::new("", spec);
                    snapshot.metadata = metadata;
                    (Object::Snapshot(Box::new(snapshot)), wrong)
                });
            }
            (Some(GROUP), API_VERSION, _) => {
                self.problem(
                    here,
                    None,
                    format!("kind: {kind:?} is not known; known are Volume and Snapshot"),
                );
            }
            (Some(GROUP), ..) => {
                self.problem(
                    here,
                    None,
                    format!(
                        "apiVersion: {api_version} is not known; this agent knows {API_VERSION}"
                    ),
                );
            }
            (_, "", _) => self.problem(here, None, "apiVersion is missing".to_owned()),
            (_, _, "") => self.problem(here, None, "kind is missing".to_owned()),
            _ => self.manifest.foreign.push(format!("{api_version}/{kind}")),
        }
    }

    fn object<S: DeserializeOwned>(
        &mut self,
        value: Value,
        place: &[String],
        make: impl FnOnce(ObjectMeta, S) -> (Object, Vec<Wrong>),
    ) {
        let full: Full<S> = match yaml::from_value(value, self.text) {
            Ok(full) => full,
            Err(error) => return self.problem(error.line, None, error.message),
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
        for Wrong { field, message } in &wrong {
            let mut path = place.to_vec();
            path.extend(segments(field));
            let line = line_of(self.text, &path);
            self.problem(line, Some(object.key()), format!("{field}: {message}"));
        }
        let line = self.line + line_of(self.text, place) - 1;
        if wrong.is_empty() {
            let text = if place.is_empty() { self.text } else { "" };
            self.manifest.documents.push(Document {
                object,
                line,
                text: text.to_owned(),
            });
        }
    }
}

fn segments(field: &str) -> Vec<String> {
    field.split('.').map(str::to_owned).collect()
}

fn check_metadata(metadata: &Metadata) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let mut refuse = |field: &str, message: &str| {
        wrong.push(Wrong {
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
    if let Some(state) = metadata
        .annotations
        .iter()
        .flatten()
        .find(|(key, _)| *key == names::STATE)
        && state.1 != "absent"
    {
        refuse(
            "metadata.annotations",
            "drumlin.dev/state can only be \"absent\"",
        );
    }
    wrong
}
