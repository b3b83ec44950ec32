//! A kustomization as a user writes it: a directory of manifests, with components.

use crate::{programs::workspace, storage::Scratch};

/// A directory with a kustomization of a directory below `manifests`, with these components and more lines.
///
/// # Panics
/// When it cannot be written.
pub fn kustomization(directory: &str, components: &[&str], more: &str) -> Scratch {
    let scratch = Scratch::new();
    // Kustomize takes paths from where it is.
    let up = "../".repeat(scratch.path().components().count() - 1);
    let manifests = workspace().join("manifests");
    let manifests = manifests.strip_prefix("/").expect("an absolute path");
    let manifests = format!("{up}{}", manifests.display());
    let components = components.iter();
    let components: Vec<_> = components
        .map(|component| format!("{manifests}/components/{component}"))
        .collect();
    let text = format!(
        "resources: [{manifests}/{directory}]\ncomponents: [{}]\n{more}\n",
        components.join(", ")
    );
    let path = scratch.path().join("kustomization.yaml");
    std::fs::write(path, text).expect("a file can be written");
    scratch
}

/// The objects of a text of several documents.
///
/// # Panics
/// When it is no YAML.
pub fn objects(text: &str) -> Vec<serde_json::Value> {
    let documents = serde_yaml::Deserializer::from_str(text);
    let objects = documents.map(|one| serde::Deserialize::deserialize(one).expect("YAML"));
    objects.collect()
}
