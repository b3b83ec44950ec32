//! What the scheduler knows of the room of very many nodes, as the stock provisioner asks the front for it.

use std::time::{Duration, Instant};

use drumlin_tests::random::number;
use futures::{StreamExt, stream};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    kustomize::Rendered,
    rbac::SYSTEM,
    sidecars::{Stack, pod_of},
};

/// How many storage classes of ours there are: those of the manifests, and one more.
const CLASSES: usize = 4;
/// By when all is known.
const LIMIT: Duration = Duration::from_mins(2);
const GIB: i64 = 1 << 30;

fn api(client: &Client, namespace: Option<&str>, kind: &str, plural: &str) -> Api<DynamicObject> {
    let (group, version) = match kind {
        "Node" | "Pod" => ("", "v1"),
        "CSINode" => ("storage.k8s.io", "v1"),
        _ => ("drumlin.dev", "v1alpha1"),
    };
    let kind = GroupVersionKind::gvk(group, version, kind);
    let kind = ApiResource::from_gvk_with_plural(&kind, plural);
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    }
}

async fn create(api: &Api<DynamicObject>, object: Value) {
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

async fn patch_status(api: &Api<DynamicObject>, name: &str, status: &Value) {
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// What there is of a node: what kubelet writes, the pod of the agent, and what that reports once it may.
async fn join(client: &Client, pod: &Value, name: &str) {
    let labels = json!({"topology.drumlin.dev/node": name});
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    create(&api(client, None, "Node", "nodes"), node).await;
    let driver = json!({"name": "csi.drumlin.dev", "nodeID": name, "topologyKeys": ["topology.drumlin.dev/node"]});
    let known = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {"name": name}, "spec": {"drivers": [driver]},
    });
    create(&api(client, None, "CSINode", "csinodes"), known).await;
    let (mut pod, own) = (pod.clone(), format!("agent-of-{name}"));
    pod["metadata"]["name"] = own.as_str().into();
    pod["spec"]["nodeName"] = name.into();
    let pods = api(client, Some(SYSTEM), "Pod", "pods");
    create(&pods, pod).await;
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    patch_status(&pods, &own, &ready).await;

    let storages = api(client, None, "NodeStorage", "nodestorages");
    let begun = Instant::now();
    while storages.get_opt(name).await.unwrap().is_none() {
        assert!(begun.elapsed() < LIMIT, "the controller makes none");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let class = json!({
        "name": "default", "default": true, "kind": "directory", "size": 100 * GIB, "promised": 0,
        "available": 90 * GIB, "maximumVolume": 90 * GIB, "volumes": 0, "ready": true,
    });
    let report = json!({"agentVersion": "0.1.0", "classes": [class]});
    patch_status(&storages, name, &report).await;
}

/// How many objects tell the scheduler of room.
async fn known(client: &Client) -> usize {
    let capacities: Api<CSIStorageCapacity> = Api::all(client.clone());
    let capacities = capacities.list(&kube::api::ListParams::default()).await;
    let capacities = capacities.unwrap().items.into_iter();
    let room = capacities.filter_map(|one| one.capacity);
    room.filter(|room| room.0 != "0").count()
}

/// Waits until so many do; for how long.
async fn until_known(stack: &Stack, client: &Client, wanted: usize) -> Duration {
    let begun = Instant::now();
    loop {
        let there = known(client).await;
        if there >= wanted {
            return begun.elapsed();
        }
        let is_in_time = begun.elapsed() < LIMIT;
        assert!(is_in_time, "{there} of {wanted}\n{}", stack.logs());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_room_of_all_nodes_is_known_within_two_minutes() {
    let nodes = usize::try_from(number("DRUMLIN_NODES").unwrap_or(100)).unwrap();
    let stack = Stack::start().await;
    let client = stack.cluster.client().await;
    let more = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: more}\nprovisioner: csi.drumlin.dev\nvolumeBindingMode: WaitForFirstConsumer\n";
    let made = stack.cluster.try_with_input(&["create", "-f", "-"], more);
    assert!(made.status.success(), "{made:?}");
    until_known(&stack, &client, CLASSES).await;

    let rendered = Rendered::of(&stack.cluster, "base", &["upstream-snapshots"]);
    let pod = pod_of(&rendered, "drumlin-agent", "agent");
    let begun = Instant::now();
    stream::iter(0..nodes)
        .map(|number| {
            let (client, pod) = (&client, &pod);
            async move { join(client, pod, &format!("many-{number}")).await }
        })
        .buffer_unordered(16)
        .collect::<Vec<()>>()
        .await;
    let joined = begun.elapsed();
    let wanted = (nodes + 1) * CLASSES;
    let later = until_known(&stack, &client, wanted).await;
    report(&format!(
        "{wanted} capacities: nodes joined in {} s, all known {} s later",
        joined.as_secs(),
        later.as_secs()
    ));
}

#[expect(clippy::print_stderr, reason = "who runs it reads the figure")]
fn report(figures: &str) {
    eprintln!("{figures}");
}
