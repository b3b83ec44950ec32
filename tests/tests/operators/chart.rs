//! The Helm chart: it is the one that is written from the manifests, and installs what kustomize does.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Output,
    sync::OnceLock,
};

use drumlin_tests::{
    kustomize::{kustomization, objects},
    programs::{program, run, workspace},
    sources::files,
    storage::Scratch,
};
use serde_json::Value;

use crate::lab;

const CHART: &str = "manifests/chart";

/// Each component, and the value of the chart that is its counterpart.
const COMPONENTS: [(&str, &str); 11] = [
    ("grafana-dashboard", "grafanaDashboard"),
    ("host-mounts", "hostMounts"),
    ("limits", "limits"),
    ("lvm", "lvm"),
    ("network-policy", "networkPolicy"),
    ("metrics", "metrics"),
    ("openshift", "openshift"),
    ("pod-monitor", "podMonitor"),
    ("priority-quota", "priorityQuota"),
    ("prometheus-rule", "prometheusRule"),
    ("upstream-snapshots", "snapshots"),
];

/// The files of a chart by their names.
fn chart(folder: &Path) -> BTreeMap<PathBuf, String> {
    let found = files(&folder.to_string_lossy(), "").into_iter();
    let found = found.map(|path| {
        let name = path.strip_prefix(folder).unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    });
    found.collect()
}

#[test]
fn the_committed_chart_is_the_one_that_is_written_from_the_manifests() {
    let scratch = Scratch::new();
    let written = scratch.path().join("chart");
    let writer = env!("CARGO_BIN_EXE_chart");
    run(writer, &[&written.to_string_lossy()]);
    let (written, committed) = (chart(&written), chart(&workspace().join(CHART)));
    let names = |chart: &BTreeMap<PathBuf, String>| chart.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&committed), names(&written), "run just chart");
    for (name, text) in committed {
        assert!(text == written[&name], "{}: run just chart", name.display());
    }
}

#[test]
fn each_component_has_a_value() {
    let folder = workspace().join("manifests/components");
    let names = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<_> = names
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut known = COMPONENTS.map(|(component, _)| component);
    known.sort_unstable();
    assert_eq!(names, known);
}

fn helm(arguments: &[&str]) -> Output {
    static HELM: OnceLock<PathBuf> = OnceLock::new();
    let helm = HELM.get_or_init(|| lab("operators", "helm"));
    let home = Scratch::new();
    let mut command = program(helm);
    // Nothing of whoever runs the test.
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.path());
    }
    command.args(arguments).output().unwrap()
}

/// What `helm template` makes of the chart with these values.
fn template(values: &[&str]) -> Output {
    let chart = workspace().join(CHART);
    let chart = chart.to_string_lossy();
    let mut arguments = vec!["template", "drumlin", &chart];
    arguments.extend(["--namespace", "drumlin-system"]);
    for value in values {
        arguments.extend(["--set", value]);
    }
    helm(&arguments)
}

fn templated(values: &[&str]) -> Vec<Value> {
    let output = template(values);
    assert!(output.status.success(), "{values:?}: {output:?}");
    objects(&String::from_utf8(output.stdout).unwrap())
}

/// What kustomize makes of the manifests.
fn kustomized(directory: &str, components: &[&str]) -> Vec<Value> {
    static KUBECTL: OnceLock<PathBuf> = OnceLock::new();
    let kubectl = KUBECTL.get_or_init(|| lab("programs", "kubectl"));
    let folder = kustomization(directory, components, "");
    let folder = folder.path().to_string_lossy().into_owned();
    objects(&run(&kubectl.to_string_lossy(), &["kustomize", &folder]))
}

/// Objects by what they are, without what one of the two alone has.
fn comparable(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for mut object in objects {
        if object.is_null() || object["kind"] == "Namespace" {
            continue;
        }
        level(&mut object);
        let at = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or("");
        let id = [
            "/apiVersion",
            "/kind",
            "/metadata/namespace",
            "/metadata/name",
        ]
        .map(at);
        let id = id.join(" ");
        assert!(found.insert(id.clone(), object).is_none(), "{id} twice");
    }
    found
}

/// Removes what differs for a reason: the chart keeps the kinds, and kustomize orders what has names otherwise.
fn level(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::Object(annotations)) = members.get_mut("annotations") {
                annotations.remove("helm.sh/resource-policy");
                if annotations.is_empty() {
                    members.remove("annotations");
                }
            }
            // Kustomize writes an empty line into what was folded.
            if let Some(Value::String(expression)) = members.get_mut("expression") {
                let words: Vec<&str> = expression.split_whitespace().collect();
                *expression = words.join(" ");
            }
            members.values_mut().for_each(level);
        }
        Value::Array(all) => {
            all.iter_mut().for_each(level);
            let name = |one: &Value| {
                let text = |key: &str| one.get(key).and_then(Value::as_str).map(str::to_owned);
                Some((text("name")?, text("mountPath")))
            };
            if all.iter().all(|one| name(one).is_some()) {
                all.sort_by_key(name);
            }
        }
        // A whole number has no point for one of them.
        Value::Number(number) => {
            if let Some(float) = number.as_f64() {
                *value = Value::from(float);
            }
        }
        _ => {}
    }
}

/// Where two objects differ first, and what is there.
fn difference(found: &Value, wanted: &Value) -> String {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            let mut keys = found.keys().chain(wanted.keys());
            let differs = |key: &&String| found.get(*key) != wanted.get(*key);
            let Some(key) = keys.find(differs) else {
                return String::new();
            };
            let inner = |all: &serde_json::Map<_, _>| all.get(key).cloned().unwrap_or_default();
            format!("{key}/{}", difference(&inner(found), &inner(wanted)))
        }
        (Value::Array(found), Value::Array(wanted)) if found.len() == wanted.len() => {
            let pairs = found.iter().zip(wanted);
            let mut different = pairs.enumerate().filter(|(_, (one, other))| one != other);
            different
                .next()
                .map_or_else(String::new, |(at, (one, other))| {
                    format!("{at}/{}", difference(one, other))
                })
        }
        _ => format!(": {found} and not {wanted}"),
    }
}

/// Both install the same.
fn are_alike(directory: &str, components: &[&str], values: &[&str]) {
    let wanted = comparable(kustomized(directory, components));
    let found = comparable(templated(values));
    let names = |all: &BTreeMap<String, Value>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&wanted), "{values:?}");
    for (id, object) in found {
        let difference = difference(&object, &wanted[&id]);
        assert!(object == wanted[&id], "{values:?}: {id}: {difference}");
    }
}

#[test]
fn the_chart_installs_what_the_manifests_do() {
    are_alike("base", &[], &[]);
    are_alike("overlays/single-node", &[], &["controller.replicas=1"]);
    let components = COMPONENTS.map(|(component, _)| component);
    let values = COMPONENTS.map(|(_, value)| format!("{value}=true"));
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    for (component, value) in components.iter().zip(&values) {
        match *component {
            "pod-monitor" => are_alike("base", &["metrics", component], &["metrics=true", value]),
            _ => are_alike("base", &[component], &[value]),
        }
    }
    are_alike("base", &components, &values);
}

#[test]
fn what_an_installation_chooses_is_everywhere() {
    let directory = "/var/snap/microk8s/common/var/lib/kubelet";
    let own = "log: {format: json}\nclasses: [{name: one}]\n";
    let config = format!("config={}", own.replace(',', "\\,"));
    let kubelet = format!("kubeletDir={directory}");
    let chosen = [
        "image.repository=registry.example/drumlin",
        "image.tag=v9",
        "imagePullSecrets[0].name=registry",
        "agent.tolerations=null",
        "controller.nodeSelector.disk=ssd",
        "crds=false",
        "lvm=true",
        &kubelet,
        &config,
    ];
    let found = templated(&chosen);
    let object = |kind: &str, name: &str| {
        let mut all = found.iter();
        let is_it = |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == name;
        all.find(is_it).unwrap_or_else(|| panic!("{kind} {name}"))
    };
    let agent = object("DaemonSet", "drumlin-agent");
    let controller = object("Deployment", "drumlin-controller");
    for workload in [agent, controller] {
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["image"], "registry.example/drumlin:v9");
        assert_eq!(pod["imagePullSecrets"][0]["name"], "registry");
    }
    let selector = &controller["spec"]["template"]["spec"]["nodeSelector"];
    assert_eq!(selector["disk"], "ssd");
    let text = agent.to_string();
    assert!(!text.contains("\"/var/lib/kubelet"), "{text}");
    assert_eq!(text.matches(directory).count(), 5, "{text}");
    let config = object("ConfigMap", "drumlin-agent");
    assert_eq!(config["data"]["agent-config.yaml"], own);
    let is_definition = |one: &&Value| one["kind"] == "CustomResourceDefinition";
    assert_eq!(found.iter().find(is_definition), None);
}

#[test]
fn a_value_that_means_nothing_is_refused() {
    for (value, why) in [
        ("hostmounts=true", "hostmounts"),
        ("lvm=maybe", "lvm"),
        ("podMonitor=true", "metrics"),
    ] {
        let refused = template(&[value]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(why), "{said}");
    }
}

#[test]
fn the_chart_is_a_good_one_for_helm() {
    let chart = workspace().join(CHART);
    let output = helm(&["lint", "--strict", &chart.to_string_lossy()]);
    assert!(output.status.success(), "{output:?}");
}
