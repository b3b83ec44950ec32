//! What calls to nodes cost the API server: by `NodeCall`s, which the agent of each node watches, beside a provisioner on each
//! node (node deployment), which watches all claims of the cluster.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drumlin_tests::cluster::Cluster;
use kube::{
    Api, Client,
    api::{
        ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, WatchParams,
    },
};
use serde_json::{Value, json};

use crate::{
    kubernetes::{open_watches, server_time, version},
    measure::{Table, sized},
};

/// How many there are of everything.
struct Size {
    nodes: usize,
    /// The time in which calls come at a rate.
    working: Duration,
}

fn size() -> Size {
    let all = Size {
        nodes: 1000,
        working: Duration::from_secs(20),
    };
    let few = Size {
        nodes: 20,
        working: Duration::from_secs(3),
    };
    sized(all, few)
}

/// `NodeCall`s a second.
const CALLS: u32 = 50;
/// Claims a second: each of their events goes to every watch, and a server with two processors has no time for more.
const CLAIMS: u32 = 5;

/// An API server on which one kind of work is done.
struct Server {
    cluster: Cluster,
    client: Client,
    space: String,
    size: Size,
    made: AtomicUsize,
}

impl Server {
    fn api(&self, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        let kind =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        Api::namespaced_with(self.client.clone(), &self.space, &kind)
    }

    fn claims(&self) -> Api<DynamicObject> {
        self.api("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
    }

    fn calls(&self) -> Api<DynamicObject> {
        self.api("drumlin.dev", "v1alpha1", "NodeCall", "nodecalls")
    }

    /// Does something so many times a second; says how much of a processor the server took for each, in seconds.
    async fn each<F: Future<Output = ()> + Send + 'static>(
        &self,
        rate: u32,
        work: impl Fn(usize) -> F,
    ) -> f64 {
        let before = server_time();
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
        let count = self.size.working.as_secs() * u64::from(rate);
        let mut working = Vec::new();
        for _ in 0..count {
            ticks.tick().await;
            working.push(tokio::spawn(work(
                self.made.fetch_add(1, Ordering::Relaxed),
            )));
        }
        for one in working {
            one.await.unwrap();
        }
        // What the last writes have set off is over by then.
        tokio::time::sleep(Duration::from_secs(5)).await;
        (server_time() - before) / count as f64
    }

    /// The life of a claim until it is bound, as scheduler and provisioner write it.
    async fn bind_claims(&self) -> f64 {
        let claims = self.claims();
        self.each(CLAIMS, |number| bind_claim(claims.clone(), number))
            .await
    }

    /// The life of a `NodeCall`, as controller and agent write it.
    async fn run_calls(&self) -> f64 {
        let calls = self.calls();
        let nodes = self.size.nodes;
        self.each(CALLS, move |number| run_call(calls.clone(), number, nodes))
            .await
    }
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

async fn merge(objects: &Api<DynamicObject>, name: &str, change: Value) {
    let how = PatchParams::default();
    let change = Patch::Merge(change);
    objects.patch(name, &how, &change).await.unwrap();
}

async fn bind_claim(claims: Api<DynamicObject>, number: usize) {
    let name = format!("claim-{number}");
    let claim = object(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none",
            "resources": {"requests": {"storage": "16Mi"}},
        },
    }));
    claims.create(&PostParams::default(), &claim).await.unwrap();
    let node = json!({"volume.kubernetes.io/selected-node": "node-1"});
    merge(&claims, &name, json!({"metadata": {"annotations": node}})).await;
    let volume = format!("pvc-{number}");
    merge(&claims, &name, json!({"spec": {"volumeName": volume}})).await;
}

async fn run_call(calls: Api<DynamicObject>, number: usize, nodes: usize) {
    let name = format!("call-{number}");
    let volume = format!("pvc-{number}");
    let call = object(json!({
        "apiVersion": "drumlin.dev/v1alpha1",
        "kind": "NodeCall",
        "metadata": {"name": name},
        "spec": {
            "nodeName": format!("node-{}", number * 7919 % nodes),
            "attempt": 1,
            "createVolume": {
                "name": volume,
                "capacityRange": {"requiredBytes": 16_777_216},
                "volumeCapabilities": [
                    {"mount": {}, "accessMode": {"mode": "SINGLE_NODE_WRITER"}},
                ],
            },
        },
    }));
    calls.create(&PostParams::default(), &call).await.unwrap();
    let how = PatchParams::default();
    let taken = json!({"status": {"phase": "Taken", "attempt": 1, "runs": 1}});
    let answer = json!({"volume": {"volumeId": volume, "capacityBytes": 16_777_216}});
    let done = json!({"status": {"phase": "Done", "code": "OK", "createVolume": answer}});
    for status in [taken, done] {
        let status = Patch::Merge(status);
        calls.patch_status(&name, &how, &status).await.unwrap();
    }
    calls
        .delete(&name, &kube::api::DeleteParams::default())
        .await
        .unwrap();
}

/// The calls and the watches of very many nodes.
pub(crate) async fn node_calls(table: &mut Table) {
    let (cluster, size) = (Cluster::of_the_lab(), size());
    let space = cluster.namespace().name;
    let server = Server {
        client: cluster.client().await,
        cluster,
        space,
        size,
        made: AtomicUsize::new(0),
    };
    let cluster = &server.cluster;
    let nodes = server.size.nodes;
    let heard = Arc::new(AtomicUsize::new(0));
    let watch = WatchParams::default().timeout(290);

    // A first time, so that what the server does only once is not counted.
    server.bind_claims().await;
    server.run_calls().await;
    let bound = server.bind_claims().await;

    let of_nodes: Vec<_> = (0..nodes)
        .map(|number| {
            watch
                .clone()
                .fields(&format!("spec.nodeName=node-{number}"))
        })
        .collect();
    let from = version(&server.calls()).await;
    let watches = open_watches(cluster, &server.calls(), &from, &of_nodes, &heard).await;
    let called = server.run_calls().await;
    let told = heard.swap(0, Ordering::Relaxed);
    watches.iter().for_each(tokio::task::JoinHandle::abort);
    tokio::time::sleep(Duration::from_secs(5)).await;

    let from = version(&server.claims()).await;
    let of_nodes = vec![watch; nodes];
    let watches = open_watches(cluster, &server.claims(), &from, &of_nodes, &heard).await;
    let everywhere = server.bind_claims().await;
    println!(
        "{nodes} nodes: {told} events of calls and {} of claims were heard",
        heard.load(Ordering::Relaxed)
    );
    watches.iter().for_each(tokio::task::JoinHandle::abort);

    let ms = |seconds: f64| seconds * 1000.0;
    println!(
        "the server's processor time: {:.1} ms for a claim, {:.1} ms more for its call to a node; {:.1} ms for a claim that each node hears of",
        ms(bound),
        ms(called),
        ms(everywhere)
    );
    table.beside(
        &format!("{nodes} nodes, {CALLS} calls a second: the API server's processor time for a claim beside a provisioner on each node"),
        (ms(bound + called), ms(everywhere)),
        1.2,
        "ms",
    );
}
