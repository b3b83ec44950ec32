//! What `kubectl apply -k` installs, judged by a real server and by the programs that it starts.

use std::{collections::HashSet, path::PathBuf, sync::OnceLock};

use drumlin_tests::{
    agent::{Agent, Options},
    cluster::Cluster,
    programs::{drumlin, program as program_of, run, workspace},
    requests::{create, raw},
    storage::Scratch,
};
use serde_json::{Value, json};
use tonic::Code;

use crate::kustomize::{COMPONENTS, Container, Rendered};

/// Where the stock sidecars are, and the definitions of their kinds.
pub(crate) fn sidecars() -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let setup = || {
        let setup = workspace().join("tests/lab/programs/setup");
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

/// What can be installed: the base with each component, and the base and the overlay with none and with all of them.
fn all(cluster: &Cluster) -> Vec<(String, Rendered)> {
    let none_and_all = [&[][..], &COMPONENTS[..]];
    let of_base = COMPONENTS.chunks(1).chain(none_and_all);
    let of_base = of_base.map(|set| ("base", set));
    let of_overlay = none_and_all.map(|set| ("overlays/single-node", set));
    let rendered = of_base.chain(of_overlay).map(|(directory, components)| {
        let name = format!("{directory} with {components:?}");
        (name, Rendered::of(cluster, directory, components))
    });
    rendered.collect()
}

#[test]
fn whatever_can_be_installed_is_valid_for_the_server() {
    let cluster = Cluster::of_the_lab();
    define_snapshots(&cluster);
    cluster.install();
    // Most of what one set has another one has, too.
    let mut judged = HashSet::new();
    for (name, rendered) in all(&cluster) {
        let mut news = rendered.objects;
        news.retain(|object| judged.insert(object.to_string()));
        if news.is_empty() {
            continue;
        }
        let text = news.iter().map(|object| format!("---\n{object}\n"));
        let news = Rendered {
            text: text.collect(),
            objects: news,
        };
        let apply = [
            "apply",
            "--server-side",
            "--dry-run=server",
            "--force-conflicts",
            "--warnings-as-errors",
            "-f",
            "-",
        ];
        let applied = cluster.try_with_input(&apply, &news.text);
        assert!(applied.status.success(), "{name}: {applied:?}");
        // Nobody here makes pods of the workloads: the server is asked for them itself.
        let pods = news.workloads().map(|(workload, template)| {
            let mut pod = template.clone();
            pod["apiVersion"] = json!("v1");
            pod["kind"] = json!("Pod");
            pod["metadata"]["name"] = json!("one");
            pod["metadata"]["namespace"] = workload["metadata"]["namespace"].clone();
            format!("---\n{pod}\n")
        });
        let pods: String = pods.collect();
        if pods.is_empty() {
            continue;
        }
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

/// Why a container would not start, if so.
fn complaint(container: &Container) -> Option<String> {
    let image = container.image.rsplit('/').next().unwrap();
    let (name, version) = image.split_once(':').unwrap();
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
    let (mut seen, mut started_before) = (0, HashSet::new());
    for (name, rendered) in all(&cluster) {
        for container in rendered.containers() {
            let which = format!("{name}: {}/{}", container.workload, container.name);
            let started = (&container.image, &container.command, &container.arguments);
            seen += 1;
            if started_before.insert(format!("{started:?}")) {
                assert_eq!(complaint(&container), None, "{which}");
            }
        }
    }
    assert!(seen > 30, "{seen} containers");
    // And it would be seen if they did not.
    for name in ["agent", "provisioner", "controller"] {
        let mut container = Rendered::of(&cluster, "base", &[]).container(name);
        container.arguments.push("--no-such-flag=1".to_owned());
        assert!(complaint(&container).is_some(), "{name}");
    }
}

#[test]
fn the_agent_is_alone_in_its_pod_and_listens_on_no_port() {
    let cluster = Cluster::of_the_lab();
    for (name, rendered) in all(&cluster) {
        let mut workloads = rendered.workloads();
        let agent = workloads.find(|(workload, _)| workload["metadata"]["name"] == "drumlin-agent");
        let (_, template) = agent.expect("there is an agent");
        let containers: Vec<&Value> = elements(template, "/spec/containers").collect();
        let [container] = containers[..] else {
            panic!("{name}: {containers:?}");
        };
        // Unless somebody wants to scrape it.
        let ports = if name.contains("\"metrics\"") {
            json!([{"name": "metrics", "containerPort": 9464}])
        } else {
            Value::Null
        };
        assert_eq!(container["ports"], ports, "{name}");
        let environment: Vec<&Value> = elements(container, "/env").collect();
        let register = json!({"name": "DRUMLIN_KUBELET_REGISTER", "value": "true"});
        assert!(environment.contains(&&register), "{name}: {environment:?}");
        for (probe, words) in [
            ("livenessProbe", &["drumlin", "ping"][..]),
            ("readinessProbe", &["drumlin", "ping", "--ready"][..]),
        ] {
            let command = &container[probe]["exec"]["command"];
            assert_eq!(*command, json!(words), "{name}: {probe}");
            let words = [&words[1..], &["--help"]].concat();
            let known = program_of(drumlin()).args(&words).output().unwrap();
            assert!(known.status.success(), "{name}: {probe}: {known:?}");
        }
    }
}

#[test]
fn kubelet_finds_the_csi_socket_where_the_pod_mounts_it_from() {
    let cluster = Cluster::of_the_lab();
    let rendered = Rendered::of(&cluster, "base", &[]);
    let mut workloads = rendered.workloads();
    let agent = workloads.find(|(workload, _)| workload["metadata"]["name"] == "drumlin-agent");
    let (_, template) = agent.expect("there is an agent");
    let container = &template["spec"]["containers"][0];
    let value = |name: &str| {
        let mut environment = elements(container, "/env");
        let found = environment.find(|one| one["name"] == name);
        found.unwrap()["value"].as_str().unwrap().to_owned()
    };
    let csi = value("CSI_ENDPOINT");
    let csi = csi.strip_prefix("unix://").unwrap();
    let mounts = mounts(template, container);
    let on_the_host = mounts.iter().find_map(|(mount, volume)| {
        let below = csi.strip_prefix(mount["mountPath"].as_str()?)?;
        let host = volume.pointer("/hostPath/path")?.as_str()?;
        Some(format!("{host}{below}"))
    });
    assert_eq!(on_the_host, Some(value("DRUMLIN_KUBELET_ENDPOINT")));
    // The registration directory is the host's own, at its own path, and not a mount of its own: one that is made anew is
    // seen.
    let kubelet = mounts
        .iter()
        .find(|(_, volume)| volume["name"] == "kubelet");
    let (mount, volume) = kubelet.unwrap();
    assert_eq!(mount["mountPath"], "/var/lib/kubelet");
    assert_eq!(volume["hostPath"]["path"], "/var/lib/kubelet");
}

/// The elements of an array at a path.
fn elements<'a>(object: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    let array = object.pointer(path).and_then(Value::as_array);
    array.into_iter().flatten()
}

/// What a pod mounts, with its volume.
fn mounts<'a>(template: &'a Value, container: &'a Value) -> Vec<(&'a Value, &'a Value)> {
    let mounts = elements(container, "/volumeMounts");
    let volume = |mount: &Value| {
        let mut volumes = elements(template, "/spec/volumes");
        volumes.find(|volume| volume["name"] == mount["name"])
    };
    mounts
        .map(|mount| (mount, volume(mount).expect("it is a volume of the pod")))
        .collect()
}

#[test]
fn pods_are_where_they_can_be_and_reach_what_they_need() {
    let cluster = Cluster::of_the_lab();
    let mut sharing = 0;
    for (name, rendered) in all(&cluster) {
        for (workload, template) in rendered.workloads() {
            let name = format!("{name}: {}", workload["metadata"]["name"]);
            let place = json!({"kubernetes.io/os": "linux"});
            assert_eq!(template["spec"]["nodeSelector"], place, "{name}");
            for container in elements(template, "/spec/containers") {
                for (mount, volume) in mounts(template, container) {
                    let path = volume.pointer("/hostPath/path").and_then(Value::as_str);
                    let security = &container["securityContext"];
                    let which = format!("{name}: {}: {mount}", container["name"]);
                    match path {
                        // A privileged container's socket is closed to the type that others have.
                        Some("/var/lib/kubelet/plugins/csi.drumlin.dev") => {
                            let is_open = security["privileged"] == true
                                || security["seLinuxOptions"]["type"] == "spc_t";
                            assert!(is_open, "{which}");
                            sharing += 1;
                        }
                        // Disks come while the agent runs, and what it mounts others see.
                        Some("/var/lib/drumlin") => {
                            assert_eq!(mount["mountPropagation"], "HostToContainer", "{which}");
                        }
                        Some("/var/lib/kubelet" | "/srv") => {
                            assert_eq!(mount["mountPropagation"], "Bidirectional", "{which}");
                        }
                        _ => {}
                    }
                    // Not every host has it.
                    if path == Some("/srv") {
                        assert_eq!(volume["hostPath"]["type"], "DirectoryOrCreate", "{which}");
                    }
                }
            }
        }
    }
    assert!(sharing > 0, "{sharing} containers share the socket");
}

#[test]
fn all_of_it_can_be_in_another_namespace() {
    let cluster = Cluster::of_the_lab();
    for directory in ["base", "overlays/single-node"] {
        let more = "namespace: storage";
        let rendered = Rendered::with(&cluster, directory, &COMPONENTS, more);
        let named = rendered.text.lines();
        let named: Vec<&str> = named
            .filter(|line| line.contains("drumlin-system"))
            .collect();
        assert!(named.is_empty(), "{directory}: {named:?}");
        for object in &rendered.objects {
            for subject in elements(object, "/subjects") {
                assert_eq!(subject["namespace"], "storage", "{object}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_takes_the_configurations_that_it_is_given() {
    let cluster = Cluster::of_the_lab();
    for components in [&[][..], &["lvm"][..]] {
        let rendered = Rendered::of(&cluster, "base", components);
        let mut objects = rendered.objects.iter();
        let map = objects.find(|object| object["kind"] == "ConfigMap");
        let text = map.unwrap()["data"]["agent-config.yaml"].as_str().unwrap();
        let options = Options {
            config: Some(text.to_owned()),
            ..Options::default()
        };
        // It starts, whether or not this machine has what the class is over.
        let agent = Agent::with(Scratch::new(), options).await;
        // Volumes that name no class want the one of that name, whatever it is over.
        for (asked, is_known) in [("default", true), ("other", false)] {
            let mut request = create("v", 32, &raw());
            request.parameters = [("class".to_owned(), asked.to_owned())].into();
            let made = agent.controller().create_volume(request).await;
            let code = made.map_or_else(|status| status.code(), |_| Code::Ok);
            assert_eq!(code != Code::InvalidArgument, is_known, "{asked}: {code:?}");
        }
    }
}
