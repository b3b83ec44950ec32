//! The values of the chart: each with what it is and its default, and from them values.yaml and its schema.

use serde_json::{Map, Value, json};

/// A value of the chart.
pub(crate) struct Setting {
    /// Its path, such as `image.tag`.
    pub(crate) path: &'static str,
    /// What it is, in one line.
    pub(crate) help: &'static str,
    /// What it is without being set.
    pub(crate) default: Value,
}

/// Components that a value switches on: the folder, the value, and what it adds.
pub(crate) const COMPONENTS: [(&str, &str, &str); 11] = [
    (
        "lvm",
        "lvm",
        "Volumes in an LVM volume group of each node, drumlin, instead of image files.",
    ),
    (
        "host-mounts",
        "hostMounts",
        "Volumes mounted on the host where objects ask for it (spec.mount), below /srv.",
    ),
    (
        "limits",
        "limits",
        "The agents see the cgroups of their nodes, for limits of reads and writes.",
    ),
    (
        "network-policy",
        "networkPolicy",
        "Nobody connects to the pods, and they to the API server alone.",
    ),
    (
        "upstream-snapshots",
        "snapshots",
        "VolumeSnapshots and VolumeGroupSnapshots by the stock snapshotter; their kinds and their controller must be there.",
    ),
    (
        "metrics",
        "metrics",
        "The agents and the controller serve metrics on port 9464 of their pods.",
    ),
    (
        "pod-monitor",
        "podMonitor",
        "A PodMonitor for the Prometheus operator; with metrics.",
    ),
    (
        "prometheus-rule",
        "prometheusRule",
        "The alerts as a PrometheusRule for the Prometheus operator.",
    ),
    (
        "grafana-dashboard",
        "grafanaDashboard",
        "The dashboard as a ConfigMap for the sidecar of Grafana's chart.",
    ),
    (
        "openshift",
        "openshift",
        "The SecurityContextConstraints that the agents need on OpenShift.",
    ),
    (
        "priority-quota",
        "priorityQuota",
        "A ResourceQuota that allows the priority classes of the system, where a cluster limits them.",
    ),
];

/// Values that a document of the base has: its kind and name, the path there, the value, and what it is.
pub(crate) const OF_BASE: [(&str, &str, &str, &str); 7] = [
    (
        "DaemonSet/drumlin-agent",
        "spec/template/spec/tolerations",
        "agent.tolerations",
        "Taints on which agents run nevertheless.",
    ),
    (
        "DaemonSet/drumlin-agent",
        "spec/template/spec/nodeSelector",
        "agent.nodeSelector",
        "Labels of the nodes that get an agent.",
    ),
    (
        "DaemonSet/drumlin-agent",
        "spec/template/spec/containers/0/resources",
        "agent.resources",
        "Resources of an agent.",
    ),
    (
        "Deployment/drumlin-controller",
        "spec/replicas",
        "controller.replicas",
        "Number of controllers; 1 on a cluster of one node.",
    ),
    (
        "Deployment/drumlin-controller",
        "spec/template/spec/tolerations",
        "controller.tolerations",
        "Taints on which the controller runs nevertheless.",
    ),
    (
        "Deployment/drumlin-controller",
        "spec/template/spec/nodeSelector",
        "controller.nodeSelector",
        "Labels of the nodes that may run the controller.",
    ),
    (
        "Deployment/drumlin-controller",
        "spec/template/spec/containers/0/resources",
        "controller.resources",
        "Resources of the controller, without its sidecars.",
    ),
];

/// The values that are in no document of the base as they are.
pub(crate) fn own() -> Vec<Setting> {
    let setting = |path, help, default| Setting {
        path,
        help,
        default,
    };
    vec![
        setting(
            "image.repository",
            "The image of the agent and the controller, without its tag.",
            json!("drumlin"),
        ),
        setting(
            "image.tag",
            "Its tag; empty for the version of the chart.",
            json!(""),
        ),
        setting(
            "imagePullSecrets",
            "Secrets to fetch images with, such as {name: registry}.",
            json!([]),
        ),
        setting(
            "config",
            "The configuration of every agent as a text: classes and all else that the documentation of the configuration has; empty for the default.",
            json!(""),
        ),
        setting(
            "crds",
            "The definitions of the kinds are a part of the release; they stay when it is uninstalled.",
            json!(true),
        ),
        setting(
            "kubeletDir",
            "The directory of kubelet on the nodes.",
            json!("/var/lib/kubelet"),
        ),
    ]
}

/// All values: those that are set most often first.
pub(crate) fn all(of_base: Vec<Setting>) -> Vec<Setting> {
    let components = COMPONENTS.iter().map(|(_, path, help)| Setting {
        path,
        help,
        default: json!(false),
    });
    own().into_iter().chain(components).chain(of_base).collect()
}

/// values.yaml.
pub(crate) fn text(all: &[Setting]) -> String {
    let mut text = "# Written by tests/src/bin/chart, as all of this chart is.\n".to_owned();
    let mut section = "";
    for setting in all {
        let (parent, key) = setting.path.split_once('.').unwrap_or(("", setting.path));
        if parent != section {
            section = parent;
            if !parent.is_empty() {
                text.push_str(&format!("{parent}:\n"));
            }
        }
        let pad = if parent.is_empty() { "" } else { "  " };
        // JSON is YAML.
        text.push_str(&format!(
            "{pad}# {}\n{pad}{key}: {}\n",
            setting.help, setting.default
        ));
    }
    text
}

/// values.schema.json: a name that is not known, or a value of another type, is an error.
pub(crate) fn schema(all: &[Setting]) -> String {
    let mut properties = Map::new();
    for setting in all {
        let one = json!({"description": setting.help, "type": kind(&setting.default)});
        match setting.path.split_once('.') {
            None => drop(properties.insert(setting.path.to_owned(), one)),
            Some((parent, key)) => {
                let section = properties
                    .entry(parent)
                    .or_insert_with(|| closed(&Map::new()));
                if let Some(Value::Object(inner)) = section.pointer_mut("/properties") {
                    inner.insert(key.to_owned(), one);
                }
            }
        }
    }
    // What helm gives every chart that is a part of another one.
    properties.insert("global".to_owned(), json!({"type": "object"}));
    let mut schema = closed(&properties);
    if let Value::Object(members) = &mut schema {
        members.insert(
            "$schema".to_owned(),
            json!("http://json-schema.org/draft-07/schema#"),
        );
        // Nobody would answer it.
        let monitored =
            json!({"properties": {"podMonitor": {"const": true}}, "required": ["podMonitor"]});
        let measured = json!({"properties": {"metrics": {"const": true}}});
        members.insert("if".to_owned(), monitored);
        members.insert("then".to_owned(), measured);
    }
    format!("{schema:#}\n")
}

fn closed(properties: &Map<String, Value>) -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
