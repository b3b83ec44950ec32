//! In a whole cluster with real kubelets: how soon pods have their volumes, what the front adds to a call, what all of it
//! takes while nothing happens.

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{
    CreateVolumeRequest, Topology, TopologyRequirement, controller_client::ControllerClient,
};
use drumlin_tests::{
    cluster::{Cluster, Namespace, condition},
    programs::{programs_of, workspace},
    requests::{create, delete, raw},
};
use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams},
};
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    measure::{Table, median, sized, timed},
    process::resident,
};

/// How many there are of everything.
struct Size {
    one_by_one: usize,
    at_once: usize,
    still: Duration,
}

fn size() -> Size {
    let all = Size {
        one_by_one: 50,
        at_once: 100,
        still: Duration::from_mins(10),
    };
    let few = Size {
        one_by_one: 5,
        at_once: 10,
        still: Duration::from_secs(30),
    };
    sized(all, few)
}

/// So long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_mins(10);
/// The namespace of all that is ours.
const SYSTEM: &str = "drumlin-system";
/// Where a node is, to the front.
const KEY: &str = "topology.drumlin.dev/node";

/// The cluster of the lab with the driver in it.
struct Lab {
    cluster: Cluster,
    client: Client,
    node: String,
}

impl Lab {
    /// Installs the manifests as the documents say; what is ours says of each call how long it took.
    async fn installed() -> Self {
        let told = |name: &str| {
            let value = std::env::var(name);
            value.expect("tests/lab/cluster/run is the runner of this section")
        };
        let cluster = Cluster::known_by(told("KUBECONFIG").as_ref());
        let client = cluster.client().await;
        let node = told("NODES").split(' ').next().unwrap().to_owned();
        let lab = Self {
            cluster,
            client,
            node,
        };
        let base = workspace().join("manifests/base");
        let base = base.to_string_lossy();
        lab.cluster
            .kubectl(&["apply", "--server-side", "-k", &base]);
        let of_ours = "daemonset/drumlin-agent";
        let loud = ["DRUMLIN_LOG=debug", "DRUMLIN_LOG_FORMAT=json"];
        lab.ours(&[&["set", "env", of_ours], &loud[..]].concat());
        for workload in lab
            .ours(&["get", "daemonset,deployment", "-o", "name"])
            .lines()
        {
            lab.ours(&["rollout", "status", workload, "--timeout=300s"]);
        }
        lab
    }

    /// `kubectl` in the namespace of what is ours.
    fn ours(&self, words: &[&str]) -> String {
        self.cluster.kubectl(&[&["-n", SYSTEM], words].concat())
    }

    fn pods(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = kube::api::GroupVersionKind::gvk("", "v1", "Pod");
        let kind = ApiResource::from_gvk_with_plural(&kind, "pods");
        Api::namespaced_with(self.client.clone(), namespace, &kind)
    }

    /// The uid of a pod of ours.
    fn uid(&self, component: &str) -> String {
        let of = format!("app.kubernetes.io/component={component}");
        let uid = "jsonpath={.items[0].metadata.uid}";
        self.ours(&["get", "pod", "-l", &of, "-o", uid])
    }

    /// A socket in an empty directory of a pod of ours, by a path that is short enough for one.
    fn socket(&self, component: &str, within: &str) -> PathBuf {
        let directory = std::env::var("CLUSTER").unwrap();
        let outside =
            std::fs::read_to_string(format!("{directory}/nodes/{}/outside.pid", self.node));
        let outside = outside.unwrap();
        let first = programs_of(outside.trim().parse().unwrap())[0];
        let pod = self.uid(component);
        let path = within.replace("POD", &format!("/var/lib/kubelet/pods/{pod}"));
        let link = std::env::temp_dir().join(format!("bench-{component}-{}", std::process::id()));
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(format!("/proc/{first}/root{path}"), &link).unwrap();
        link
    }
}

/// Pods with these names, each with a claim of its own or with an empty directory.
fn pods(names: &[String], volume: Volume) -> String {
    let pods = names.iter().map(|name| {
        let (claim, source) = match volume {
            Volume::Claim => (
                format!(
                    "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec:\n  storageClassName: drumlin\n  accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: 16Mi}}}}\n---\n"
                ),
                format!("persistentVolumeClaim: {{claimName: {name}}}"),
            ),
            Volume::EmptyDirectory => (String::new(), "emptyDir: {}".to_owned()),
        };
        format!(
            "{claim}apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  volumes: [{{name: data, {source}}}]\n  containers:\n  - name: main\n    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-1\n    command: [sh, -c, \"touch /data/file && sleep infinity\"]\n    volumeMounts: [{{name: data, mountPath: /data}}]\n---\n"
        )
    });
    pods.collect()
}

/// What a pod keeps its data on.
#[derive(Clone, Copy)]
enum Volume {
    Claim,
    EmptyDirectory,
}

/// Applies pods, and says how long it was until all were ready; deletes them, and waits until nothing is left of them.
async fn until_ready(
    lab: &Lab,
    space: &Namespace<'_>,
    names: &[String],
    volume: Volume,
) -> Duration {
    let api = lab.pods(&space.name);
    let from = api.list(&ListParams::default().limit(1)).await.unwrap();
    let from = from.metadata.resource_version.unwrap();
    let how = WatchParams::default().timeout(290);
    let mut watched = api.watch(&how, &from).await.unwrap().boxed();
    let text = pods(names, volume);
    let begun = Instant::now();
    space.apply(&text);
    let mut waited: HashSet<&str> = names.iter().map(String::as_str).collect();
    while !waited.is_empty() {
        let event = timeout(PATIENCE, watched.try_next()).await;
        let event = event.expect("pods are ready in time").unwrap();
        let Some(WatchEvent::Modified(pod)) = event else {
            assert!(
                event.is_some(),
                "the watch ended before {waited:?} were ready"
            );
            continue;
        };
        let now = serde_json::to_value(&pod).unwrap();
        if condition(&now, "Ready").is_some_and(|ready| ready["status"] == "True") {
            waited.remove(pod.metadata.name.as_deref().unwrap());
        }
    }
    let took = begun.elapsed();
    space.kubectl(&["delete", "pod,pvc", "--all", "--wait=true"]);
    let begun = Instant::now();
    while !lab.cluster.kubectl(&["get", "pv", "-o", "name"]).is_empty() {
        assert!(begun.elapsed() < PATIENCE, "volumes are never deleted");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    took
}

/// How long the agent's calls of each method took, as it has logged them since the line of that number.
fn calls(log: &str, from: usize) -> BTreeMap<String, Vec<Duration>> {
    let mut calls = BTreeMap::<String, Vec<Duration>>::new();
    for line in log.lines().skip(from) {
        let Ok(line) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        // Its trace says the same of the call once more.
        if line["message"] != "rpc" {
            continue;
        }
        if let (Some(method), Some(ms)) = (line["rpc.method"].as_str(), line["elapsed_ms"].as_f64())
        {
            let method = method.rsplit('/').next().unwrap().to_owned();
            let took = Duration::from_secs_f64(ms / 1000.0);
            calls.entry(method).or_default().push(took);
        }
    }
    calls
}

/// From the apply of a claim and its pod until the pod is ready, beside a pod with an empty directory, in turns.
async fn one_by_one(table: &mut Table, lab: &Lab, count: usize) {
    let space = lab.cluster.namespace();
    let agent = ["logs", "daemonset/drumlin-agent", "--tail=-1"];
    let before = lab.ours(&agent).lines().count();
    let (mut claims, mut empty) = (Vec::new(), Vec::new());
    for number in 0..count {
        let name = [format!("claim-{number}")];
        claims.push(until_ready(lab, &space, &name, Volume::Claim).await);
        let name = [format!("empty-{number}")];
        empty.push(until_ready(lab, &space, &name, Volume::EmptyDirectory).await);
    }
    let ours = calls(&lab.ours(&agent), before);
    let mut sum = Duration::ZERO;
    for method in ["CreateVolume", "NodeStageVolume", "NodePublishVolume"] {
        let times = ours
            .get(method)
            .unwrap_or_else(|| panic!("no {method} in {ours:?}"));
        println!(
            "{method}: {:?}, median of {}",
            median(times.clone()),
            times.len()
        );
        sum += median(times.clone());
    }
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let (claims, empty) = (median(claims), median(empty));
    let figure = |what: &str| format!("claim and pod applied until the pod is ready, {what}");
    table.most(&figure("median"), ms(claims), 1500.0, "ms");
    table.most(&figure("of which the agent's calls"), ms(sum), 150.0, "ms");
    table.ratio(&figure("beside a pod with emptyDir"), (claims, empty), 2.0);
}

/// Very many pods that are made at once on one node.
async fn at_once(table: &mut Table, lab: &Lab, count: usize) {
    let space = lab.cluster.namespace();
    let names = |of: &str| {
        (0..count)
            .map(|number| format!("{of}-{number}"))
            .collect::<Vec<_>>()
    };
    let empty = until_ready(lab, &space, &names("empty"), Volume::EmptyDirectory).await;
    let claims = until_ready(lab, &space, &names("claim"), Volume::Claim).await;
    let figure = format!("{count} pods at once on one node, each with a claim, beside emptyDir");
    table.ratio(&figure, (claims, empty), 2.0);
}

/// `CreateVolume` at the front, and at the agent, in turns.
async fn front(table: &mut Table, lab: &Lab, count: usize) {
    let front = lab.socket(
        "controller",
        "POD/volumes/kubernetes.io~empty-dir/socket/csi.sock",
    );
    let agent = lab.socket("agent", "/var/lib/kubelet/plugins/csi.drumlin.dev/csi.sock");
    let mut front = ControllerClient::new(drumlin_proto::connect(&front).unwrap());
    let mut agent = ControllerClient::new(drumlin_proto::connect(&agent).unwrap());
    let here = Topology {
        segments: [(KEY.to_owned(), lab.node.clone())].into(),
    };
    let request = |name: String| CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![here.clone()],
            preferred: vec![here.clone()],
        }),
        ..create(&name, 16, &raw())
    };
    let (mut through, mut beside) = (Vec::new(), Vec::new());
    for number in 0..count {
        for (client, times, of) in [
            (&mut front, &mut through, "front"),
            (&mut agent, &mut beside, "agent"),
        ] {
            let request = request(format!("{of}-{number}"));
            let (made, took) = timed(client.create_volume(request)).await;
            times.push(took);
            let id = made.unwrap().into_inner().volume.unwrap().volume_id;
            client.delete_volume(delete(&id)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (through, beside) = (median(through), median(beside));
    println!("CreateVolume: {through:?} through the front, {beside:?} at the agent");
    let more = through.saturating_sub(beside).as_secs_f64() * 1000.0;
    table.most(
        "CreateVolume through the front, more than at the agent",
        more,
        60.0,
        "ms",
    );
}

/// The requests that have changed something at the API server so far, by kind.
fn written(lab: &Lab) -> BTreeMap<String, f64> {
    let metrics = lab.cluster.kubectl(&["get", "--raw", "/metrics"]);
    let mut written = BTreeMap::new();
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("apiserver_request_total{"));
    // What is only tried, as the controller tries its policies, writes nothing.
    let lines = lines.filter(|line| line.contains("dry_run=\"\""));
    for line in lines {
        let label = |name: &str| {
            let rest = line.split_once(&format!("{name}=\"")).unwrap().1;
            rest.split_once('"').unwrap().0.to_owned()
        };
        if ["POST", "PUT", "PATCH", "APPLY", "DELETE"].contains(&label("verb").as_str()) {
            let count: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
            *written
                .entry(format!("{}/{}", label("resource"), label("subresource")))
                .or_default() += count;
        }
    }
    written
}

/// A cluster with some volumes in which nothing happens.
async fn still(table: &mut Table, lab: &Lab, how_long: Duration) {
    let space = lab.cluster.namespace();
    let names: Vec<_> = (0..5).map(|number| format!("still-{number}")).collect();
    space.apply(&pods(&names, Volume::Claim));
    space.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod",
        "--all",
        "--timeout=300s",
    ]);
    // The provisioner asks every two minutes for the room that is left, and writes what has changed.
    tokio::time::sleep(Duration::from_secs(150)).await;
    let before = written(lab);
    tokio::time::sleep(how_long).await;
    let mut after = written(lab);
    for (kind, count) in &mut after {
        *count -= before.get(kind).copied().unwrap_or_default();
    }
    after.retain(|_, count| *count > 0.0);
    println!(
        "in {} s, of all that runs in the cluster: {after:?}",
        how_long.as_secs()
    );
    // Leases, what a kubelet says of its node, and questions about rights, which are not kept.
    let kept = after.iter().filter(|(kind, _)| {
        !["leases/", "nodes/status", "serviceaccounts/token"].contains(&kind.as_str())
            && !kind.contains("reviews/")
    });
    let kept = kept.map(|(_, count)| count).sum::<f64>().max(0.0);
    let figure = format!("idle cluster, {} s: writes but leases", how_long.as_secs());
    table.most(&figure, kept, 0.0, "writes");
}

/// The memory of all our containers on the node, without the controller's.
fn memory(table: &mut Table, lab: &Lab) {
    let group = lab.uid("agent").replace('-', "_");
    let (dashed, mut sum) = (lab.uid("agent"), 0.0);
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let groups = std::fs::read_to_string(process.path().join("cgroup")).unwrap_or_default();
        if groups.contains(&group) || groups.contains(&dashed) {
            let command = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let here = resident(pid);
            println!("of the agent's pod: {here:.1} MiB {command}");
            // What keeps the pod's namespaces is kubelet's.
            if !command.starts_with("/pause") {
                sum += here;
            }
        }
    }
    assert!(sum > 0.0, "no process of the agent's pod is found");
    table.most(
        "resident memory a node, all our containers",
        sum,
        30.0,
        "MiB",
    );
}

/// All of it.
pub(crate) async fn cluster(table: &mut Table, part: impl Fn(&str) -> bool) {
    let (lab, size) = (Lab::installed().await, size());
    if part("front") {
        front(table, &lab, size.one_by_one).await;
    }
    if part("pods") {
        one_by_one(table, &lab, size.one_by_one).await;
    }
    if part("many") {
        at_once(table, &lab, size.at_once).await;
    }
    memory(table, &lab);
    if part("still") {
        still(table, &lab, size.still).await;
    }
}
