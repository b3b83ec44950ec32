//! What `kubectl apply -k` installs, judged by a real server and by the programs that it starts.

use std::{path::PathBuf, sync::OnceLock};

use drumlin_tests::{
    cluster::Cluster,
    programs::{drumlin, program as program_of, run, workspace},
};
use serde_json::json;

use crate::rendered::{COMPONENTS, Container, Rendered};

/// Where the stock sidecars are, and the definitions of their kinds.
pub(crate) fn sidecars() -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let setup = || {
        let setup = workspace().join("tests/lab/sidecars/setup");
        PathBuf::from(run(&setup.to_string_lossy(), &[]).trim())
    };
    DIRECTORY.get_or_init(setup).clone()
}

/// Has the server serve the kinds of the stock snapshotter.
pub(crate) fn define_snapshots(cluster: &Cluster) {
    let kinds = sidecars().join("crds");
    cluster.kubectl(&["apply", "--server-side", "-f", &kinds.to_string_lossy()]);
    let kinds = "--for=condition=Established";
    cluster.kubectl(&["wait", kinds, "crd", "--all", "--timeout=20s"]);
}

/// What can be installed: the base, the overlays, each with each component, and with all.
fn all(cluster: &Cluster) -> Vec<(String, Rendered)> {
    let mut all = Vec::new();
    for directory in ["base", "overlays/single-node", "overlays/large"] {
        let mut sets: Vec<&[&str]> = COMPONENTS.chunks(1).collect();
        sets.extend([&[][..], &COMPONENTS[..]]);
        for components in sets {
            let name = format!("{directory} with {components:?}");
            all.push((name, Rendered::of(cluster, directory, components)));
        }
    }
    all
}

#[test]
fn whatever_can_be_installed_is_valid_for_the_server() {
    let cluster = Cluster::of_the_lab();
    define_snapshots(&cluster);
    cluster.install();
    for (name, rendered) in all(&cluster) {
        let apply = [
            "apply",
            "--server-side",
            "--dry-run=server",
            "--force-conflicts",
            "--warnings-as-errors",
            "-f",
            "-",
        ];
        let applied = cluster.try_with_input(&apply, &rendered.text);
        assert!(applied.status.success(), "{name}: {applied:?}");
        // Nobody here makes pods of the workloads: the server is asked for them itself.
        let pods = rendered.workloads().map(|(workload, template)| {
            let mut pod = template.clone();
            pod["apiVersion"] = json!("v1");
            pod["kind"] = json!("Pod");
            pod["metadata"]["name"] = json!("one");
            pod["metadata"]["namespace"] = workload["metadata"]["namespace"].clone();
            format!("---\n{pod}\n")
        });
        let pods: String = pods.collect();
        let create = [
            "create",
            "--dry-run=server",
            "--warnings-as-errors",
            "-f",
            "-",
        ];
        let created = cluster.try_with_input(&create, &pods);
        assert!(created.status.success(), "{name}: {created:?}");
    }
}

/// The flags of the sidecars that no module registry has, as their sources of these versions say.
const FLAGS: [(&str, &[&str]); 2] = [
    (
        "livenessprobe:v2.19.0",
        &["csi-address", "http-endpoint", "probe-timeout"],
    ),
    (
        "csi-node-driver-registrar:v2.17.0",
        &["csi-address", "kubelet-registration-path", "timeout"],
    ),
];

/// Why a container would not start, if so.
fn complaint(container: &Container) -> Option<String> {
    let image = container.image.rsplit('/').next().unwrap();
    let (name, version) = image.split_once(':').unwrap();
    if let Some((_, known)) = FLAGS.iter().find(|(of, _)| *of == image) {
        let flags = container.arguments.iter();
        let mut flags = flags.map(|flag| flag.trim_start_matches('-').split('=').next().unwrap());
        return flags
            .find(|flag| !known.contains(flag))
            .map(|flag| format!("--{flag} is not known"));
    }
    let mut words: Vec<&str> = Vec::new();
    let words_of = |texts| <Vec<String> as AsRef<[String]>>::as_ref(texts).iter();
    let program = if name == "drumlin" {
        // What starts it is a program of the image.
        let own = words_of(&container.command).skip_while(|word| *word != "drumlin");
        words.extend(own.skip(1).map(String::as_str));
        drumlin()
    } else {
        sidecars().join(name)
    };
    words.extend(words_of(&container.arguments).map(String::as_str));
    words.push(if name == "drumlin" {
        "--help"
    } else {
        "--version"
    });
    // What the pod's environment has.
    let environment = ["NODE_NAME", "NAMESPACE", "POD_NAME"].map(|name| (name, "x"));
    let output = program_of(program)
        .args(&words)
        .envs(environment)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_right = output.status.success() && (name == "drumlin" || said.contains(version));
    (!is_right).then(|| format!("{words:?}: {output:?}"))
}

#[test]
fn the_programs_know_the_flags_that_they_are_given() {
    let cluster = Cluster::of_the_lab();
    let mut seen = 0;
    for (name, rendered) in all(&cluster) {
        for container in rendered.containers() {
            let complaint = complaint(&container);
            let which = format!("{name}: {}/{}", container.workload, container.name);
            assert_eq!(complaint, None, "{which}");
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} containers");
    // And it would be seen if they did not.
    for name in ["agent", "provisioner", "node-driver-registrar"] {
        let mut container = Rendered::of(&cluster, "base", &[]).container(name);
        container.arguments.push("--no-such-flag=1".to_owned());
        assert!(complaint(&container).is_some(), "{name}");
    }
}
