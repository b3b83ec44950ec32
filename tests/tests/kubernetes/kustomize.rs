//! What `kubectl apply -k` applies, and what is in it.

use std::path::Path;

use drumlin_tests::{
    cluster::Cluster,
    kustomize::{kustomization, objects},
};
use serde_json::Value;

/// A container of a workload.
pub(crate) struct Container {
    /// The workload that it is in.
    pub(crate) workload: String,
    pub(crate) name: String,
    pub(crate) image: String,
    /// What is started, if that is not the image's choice.
    pub(crate) command: Vec<String>,
    pub(crate) arguments: Vec<String>,
}

/// The objects of a kustomization.
pub(crate) struct Rendered {
    /// All of them as YAML.
    pub(crate) text: String,
    pub(crate) objects: Vec<Value>,
}

/// The parts that a user can add; those that want kinds of the Prometheus operator, which no server here has, are left out.
pub(crate) const COMPONENTS: [&str; 8] = [
    "grafana-dashboard",
    "host-mounts",
    "limits",
    "lvm",
    "network-policy",
    "metrics",
    "priority-quota",
    "upstream-snapshots",
];

impl Rendered {
    /// Those of a directory below `manifests`, with components as a user adds them.
    pub(crate) fn of(cluster: &Cluster, directory: &str, components: &[&str]) -> Self {
        Self::with(cluster, directory, components, "")
    }

    /// The same, with more lines in the user's own kustomization.
    pub(crate) fn with(
        cluster: &Cluster,
        directory: &str,
        components: &[&str],
        more: &str,
    ) -> Self {
        let scratch = kustomization(directory, components, more);
        Self::in_directory(cluster, scratch.path())
    }

    /// Those of any directory.
    pub(crate) fn in_directory(cluster: &Cluster, directory: &Path) -> Self {
        let text = cluster.kubectl(&["kustomize", &directory.to_string_lossy()]);
        let objects = objects(&text);
        Self { text, objects }
    }

    /// Has the server take them.
    pub(crate) fn apply(&self, cluster: &Cluster) {
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        let applied = cluster.try_with_input(&apply, &self.text);
        assert!(applied.status.success(), "{applied:?}");
    }

    /// What has pods, with the template of those.
    pub(crate) fn workloads(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.objects.iter().filter_map(|object| {
            let template = object.pointer("/spec/template")?;
            Some((object, template))
        })
    }

    pub(crate) fn containers(&self) -> Vec<Container> {
        let mut all = Vec::new();
        for (workload, template) in self.workloads() {
            for container in template["spec"]["containers"].as_array().unwrap() {
                all.push(Container {
                    workload: text(&workload["metadata"]["name"]),
                    name: text(&container["name"]),
                    image: text(&container["image"]),
                    command: texts(&container["command"]),
                    arguments: texts(&container["args"]),
                });
            }
        }
        all
    }

    /// The container of this name.
    pub(crate) fn container(&self, name: &str) -> Container {
        let mut all = self.containers().into_iter();
        all.find(|container| container.name == name).unwrap()
    }
}

impl Container {
    /// Its arguments with the socket and the server of a test.
    pub(crate) fn arguments_with(&self, socket: &Path, cluster: &Cluster) -> Vec<String> {
        let mut arguments = self.arguments.clone();
        for argument in &mut arguments {
            if argument.starts_with("--csi-address=") {
                *argument = format!("--csi-address={}", socket.display());
            }
        }
        arguments.extend(cluster.arguments());
        arguments
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}
