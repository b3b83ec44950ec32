//! The custom resource definitions of all kinds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::yaml::is_ambiguous;
use crate::{GroupSnapshot, Snapshot, SnapshotSchedule, Volume, VolumeGroup};

/// The definitions for the API server, each with its file name.
pub fn crds() -> Vec<(String, Value)> {
    let all = [
        Volume::crd(),
        VolumeGroup::crd(),
        Snapshot::crd(),
        GroupSnapshot::crd(),
        SnapshotSchedule::crd(),
    ];
    all.into_iter()
        .map(|crd| {
            let file = format!("{}.yaml", crd.metadata.name.clone().unwrap_or_default());
            (file, finish(&crd))
        })
        .collect()
}

/// A value as YAML that readers of YAML 1.1, such as kubectl, read as it is.
pub fn to_yaml(value: &Value) -> String {
    let mut quoted = Quoted::default();
    let marked = quoted.mark(value);
    // A map of strings, lists and maps can always be written.
    let text = serde_yaml::to_string(&marked).unwrap_or_default();
    quoted.restore(text)
}

/// The texts that want quotes: other readers take them for booleans, numbers or times.
#[derive(Default)]
struct Quoted(Vec<String>);

impl Quoted {
    /// The value with a mark in place of each.
    fn mark(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.word(text)),
            Value::Array(items) => items.iter().map(|item| self.mark(item)).collect(),
            Value::Object(fields) => {
                let fields = fields.iter();
                let fields = fields.map(|(key, value)| (self.word(key), self.mark(value)));
                Value::Object(fields.collect())
            }
            other => other.clone(),
        }
    }

    fn word(&mut self, text: &str) -> String {
        let is_date = text.len() >= 10
            && text.char_indices().take(10).all(|(at, letter)| match at {
                4 | 7 => letter == '-',
                _ => letter.is_ascii_digit(),
            });
        if !is_date && !is_ambiguous(text) {
            return text.to_owned();
        }
        self.0.push(text.to_owned());
        mark(self.0.len() - 1)
    }

    fn restore(self, mut text: String) -> String {
        for (index, word) in self.0.iter().enumerate().rev() {
            let quoted = serde_json::to_string(word).unwrap_or_default();
            text = text.replacen(&mark(index), &quoted, 1);
        }
        text
    }
}

/// What no text of ours contains, and needs no quotes.
fn mark(index: usize) -> String {
    format!("\u{e000}{index}\u{e001}")
}

/// The documents of a YAML text.
///
/// # Errors
/// When it is not valid.
pub fn from_yaml(text: &str) -> Result<Vec<Value>, serde_yaml::Error> {
    let documents = serde_yaml::Deserializer::from_str(text);
    documents.map(Value::deserialize).collect()
}

/// Changes to the derived definitions.
fn finish(crd: &CustomResourceDefinition) -> Value {
    let mut crd = tidied(crd);
    let versions = crd
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        // Tools that read a new object before the first reconciliation see it as InProgress, not as Current.
        if let Some(status) = version.pointer_mut("/schema/openAPIV3Schema/properties/status") {
            set(status, "default", json!({"observedGeneration": -1}));
        }
    }
    crd
}

/// A derived definition without what a structural schema cannot express, or need not.
pub fn tidied(crd: &CustomResourceDefinition) -> Value {
    let mut crd = serde_json::to_value(crd).unwrap_or_default();
    tidy(&mut crd);
    crd
}

fn tidy(value: &mut Value) {
    match value {
        Value::Object(map) => {
            // Absent and null are equivalent, and has() in rules does not work for a nullable field.
            if map.get("nullable") == Some(&Value::Bool(true)) {
                map.remove("nullable");
            }
            // The server supports only signed integer formats and warns about others.
            if map.get("format").is_some_and(|format| format == "uint32") {
                map.remove("format");
            }
            // A structural schema cannot express it; the server refuses unknown fields with strict validation.
            if map.get("additionalProperties") == Some(&Value::Bool(false)) {
                map.remove("additionalProperties");
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn set(value: &mut Value, key: &str, to: Value) {
    if let Value::Object(map) = value {
        map.insert(key.to_owned(), to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    /// `DRUMLIN_UPDATE=1 cargo test -p drumlin-crd` writes them anew.
    #[test]
    fn the_committed_definitions_are_current() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/base/crds");
        for (file, crd) in crds() {
            let path = directory.join(file);
            let wanted = to_yaml(&crd);
            if std::env::var_os("DRUMLIN_UPDATE").is_some() {
                fs::create_dir_all(&directory).unwrap();
                fs::write(&path, &wanted).unwrap();
            }
            let found = fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(
                found, wanted,
                "{path:?} is not current: DRUMLIN_UPDATE=1 cargo test -p drumlin-crd"
            );
        }
    }

    #[test]
    fn what_readers_of_yaml_1_1_take_for_something_else_has_quotes() {
        let value = json!({
            "no": ["on", "y", "1e3", "0x1f", "2026-11-29", "2026-11-29T02:00:00Z", "12"],
            "plain": ["none", "one", "2026", "a: b", "\u{e000}"],
        });
        let text = to_yaml(&value);
        for quoted in ["no", "on", "y", "1e3", "2026-11-29", "2026-11-29T02:00:00Z"] {
            assert!(text.contains(&format!("\"{quoted}\"")), "{quoted}: {text}");
        }
        assert_eq!(from_yaml(&text).unwrap(), [value]);
    }

    #[test]
    fn the_rules_of_the_fields_are_in_the_schema() {
        let text = to_yaml(&crds()[0].1);
        for part in [
            "capacity can only grow",
            "exists_one",
            "nodeName cannot be changed",
            "x-kubernetes-list-map-keys",
            "observedGeneration: -1",
            "jsonPath: .spec.nodeName",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("nullable"));
        assert!(!text.contains("additionalProperties: false"));
    }
}
