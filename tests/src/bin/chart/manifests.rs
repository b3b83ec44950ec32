//! The manifests as kustomize reads them: the base and its components.

use std::collections::BTreeMap;

use drumlin_tests::sources::read;
use serde::Deserialize;
use serde_yaml::Value;

use crate::{
    node::{Member, Node},
    patch,
    values::{COMPONENTS, OF_BASE},
};

/// An object of a file.
#[derive(Debug)]
pub(crate) struct Document {
    /// The kind and the name of the object, such as `DaemonSet/drumlin-agent`.
    pub(crate) id: String,
    /// The comments at its head.
    pub(crate) head: String,
    pub(crate) node: Node,
    /// The value on which it is there.
    pub(crate) when: Option<String>,
}

/// The objects of the base and of all components.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    /// By the files that they are in.
    pub(crate) files: BTreeMap<String, Vec<Document>>,
    /// What the base has where an installation may choose, by object and path.
    pub(crate) values: BTreeMap<(String, String), serde_json::Value>,
}

/// A kustomization, as far as ours use it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kustomization {
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    patches: Vec<Change>,
    #[serde(default)]
    config_map_generator: Vec<ConfigMap>,
}

#[derive(Debug, Deserialize)]
struct Change {
    target: Option<Target>,
    path: Option<String>,
    patch: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: String,
    name: String,
}

#[derive(Debug, Deserialize)]
struct ConfigMap {
    name: String,
    files: Vec<String>,
    behavior: Option<String>,
    options: Option<Options>,
}

#[derive(Debug, Deserialize)]
struct Options {
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

const BASE: &str = "manifests/base";
/// The file of the agents' configuration, in the base, in components and in the chart.
const CONFIG: &str = "agent-config.yaml";

fn kustomization(folder: &str) -> Result<Kustomization, String> {
    let text = read(format!("{folder}/kustomization.yaml"));
    serde_yaml::from_str(&text).map_err(|error| format!("{folder}: {error}"))
}

/// The objects of a text, each with the comments at its head.
fn documents(text: &str, when: Option<&str>) -> Result<Vec<(Document, Value)>, String> {
    let texts = text.split("\n---\n");
    let read = texts.map(|text| {
        let lines = text.lines().take_while(|line| line.starts_with('#'));
        let value: Value = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
        let head = lines.fold(String::new(), |head, line| head + line + "\n");
        Ok((Document::new(head, Node::of(&value)?, when), value))
    });
    read.collect()
}

impl Document {
    fn new(head: String, mut node: Node, when: Option<&str>) -> Self {
        let kind = node.text_at("kind").unwrap_or_default().to_owned();
        let name = node.text_at("metadata/name").unwrap_or_default();
        Self {
            id: format!("{kind}/{name}"),
            head,
            node,
            when: when.map(str::to_owned),
        }
    }

    /// Has helm leave the object where the release goes: what it is the definition of would go with it.
    pub(crate) fn keep(&mut self) -> Result<(), String> {
        let metadata = self.node.at("metadata").and_then(Node::members);
        let keep = Member::new("helm.sh/resource-policy", Node::Scalar("keep".to_owned()));
        let annotations = Member::new("annotations", Node::Map(vec![keep]));
        metadata
            .ok_or("an object without metadata")?
            .push(annotations);
        Ok(())
    }
}

impl Manifests {
    /// Reads the base, and what components add to it in files of their own.
    ///
    /// # Errors
    /// If a manifest is of a form that no chart is written from.
    pub(crate) fn read() -> Result<Self, String> {
        let mut all = Self::default();
        let base = kustomization(BASE)?;
        // The namespace is that of the release: whoever installs it makes it.
        for file in base
            .resources
            .iter()
            .filter(|file| *file != "namespace.yaml")
        {
            all.read_file(BASE, file, file, None)?;
        }
        for (component, value, _) in COMPONENTS {
            let folder = format!("manifests/components/{component}");
            let kustomization = kustomization(&folder)?;
            for file in &kustomization.resources {
                let name = format!("{component}-{file}");
                all.read_file(&folder, file, &name, Some(value))?;
            }
            for map in &kustomization.config_map_generator {
                if map.behavior.as_deref() != Some("replace") {
                    all.add_config_map(&folder, map, value)?;
                }
            }
        }
        all.files.insert(CONFIG.to_owned(), configuration()?);
        Ok(all)
    }

    fn read_file(
        &mut self,
        folder: &str,
        file: &str,
        name: &str,
        when: Option<&str>,
    ) -> Result<(), String> {
        let because = |error: String| format!("{folder}/{file}: {error}");
        let found = documents(&read(format!("{folder}/{file}")), when).map_err(because)?;
        for (document, value) in found {
            let id = &document.id;
            for (_, path, _, _) in OF_BASE.iter().filter(|(object, ..)| *object == id) {
                let mut at = Some(&value);
                for key in path.split('/') {
                    at = at.and_then(|value| match key.parse::<usize>() {
                        Ok(index) => value.get(index),
                        Err(_) => value.get(key),
                    });
                }
                let default = serde_json::to_value(at).map_err(|error| error.to_string())?;
                self.values
                    .insert((id.clone(), (*path).to_owned()), default);
            }
            self.files
                .entry(name.to_owned())
                .or_default()
                .push(document);
        }
        Ok(())
    }

    fn add_config_map(&mut self, folder: &str, map: &ConfigMap, when: &str) -> Result<(), String> {
        let mut data = serde_yaml::Mapping::new();
        for file in &map.files {
            data.insert(
                file.as_str().into(),
                read(format!("{folder}/{file}")).into(),
            );
        }
        let mut text = String::from("apiVersion: v1\nkind: ConfigMap\nmetadata:\n");
        text.push_str(&format!(
            "  name: {}\n  namespace: drumlin-system\n",
            map.name
        ));
        let options = map.options.as_ref();
        if let Some(options) = options.filter(|options| !options.labels.is_empty()) {
            let labels = serde_json::to_string(&options.labels);
            let labels = labels.map_err(|error| error.to_string())?;
            text.push_str(&format!("  labels: {labels}\n"));
        }
        let mut value: Value = serde_yaml::from_str(&text).map_err(|error| error.to_string())?;
        if let Value::Mapping(members) = &mut value {
            members.insert("data".into(), data.into());
        }
        let document = Document::new(String::new(), Node::of(&value)?, Some(when));
        let name = format!("{}.yaml", map.name);
        self.files.insert(name, vec![document]);
        Ok(())
    }

    /// The object of a kind and a name, such as `DaemonSet/drumlin-agent`.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn document(&mut self, id: &str) -> Result<&mut Document, String> {
        let mut all = self.files.values_mut().flatten();
        let found = all.find(|document| document.id == id);
        found.ok_or_else(|| format!("there is no {id}"))
    }

    /// Applies the patches of all components.
    ///
    /// # Errors
    /// If one does anything but add.
    pub(crate) fn apply_components(&mut self) -> Result<(), String> {
        for (component, value, _) in COMPONENTS {
            let folder = format!("manifests/components/{component}");
            for patch in kustomization(&folder)?.patches {
                let text = match (&patch.path, patch.patch) {
                    (Some(path), _) => read(format!("{folder}/{path}")),
                    (None, text) => text.ok_or("a patch without a text")?,
                };
                let applied = self.apply(patch.target.as_ref(), &text, value);
                applied.map_err(|error| format!("{folder}: {error}"))?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, target: Option<&Target>, text: &str, when: &str) -> Result<(), String> {
        if let Some(Target { kind, name }) = target {
            let patch: Value = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
            let document = self.document(&format!("{kind}/{name}"))?;
            return patch::add_all(&mut document.node, &patch, when);
        }
        for (merged, _) in documents(text, None)? {
            patch::merge(&mut self.document(&merged.id)?.node, merged.node, when)?;
        }
        Ok(())
    }
}

/// The configuration of the agents: that of the release, that of the component lvm, or that of the base.
fn configuration() -> Result<Vec<Document>, String> {
    let indented = |text: String| {
        let lines = text.lines().map(|line| format!("    {line}\n"));
        lines.collect::<String>()
    };
    let (_, lvm, _) = COMPONENTS
        .into_iter()
        .find(|(component, ..)| *component == "lvm")
        .ok_or("there is no component lvm")?;
    let of_base = indented(read(format!("{BASE}/{CONFIG}")));
    let of_lvm = indented(read(format!("manifests/components/lvm/{CONFIG}")));
    let data = format!(
        "|\n{{{{- if .Values.config }}}}\n{{{{ .Values.config | indent 4 }}}}\n{{{{- else if .Values.{lvm} }}}}\n{of_lvm}{{{{- else }}}}\n{of_base}{{{{- end }}}}"
    );
    let scalar = |text: &str| Node::Scalar(text.to_owned());
    let metadata = Node::Map(vec![
        Member::new("name", scalar("drumlin-agent")),
        Member::new("namespace", scalar("{{ .Release.Namespace }}")),
    ]);
    let node = Node::Map(vec![
        Member::new("apiVersion", scalar("v1")),
        Member::new("kind", scalar("ConfigMap")),
        Member::new("metadata", metadata),
        Member::new(
            "data",
            Node::Map(vec![Member::new(CONFIG, Node::Scalar(data))]),
        ),
    ]);
    Ok(vec![Document::new(String::new(), node, None)])
}
