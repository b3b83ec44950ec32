//! Lives of claims and of objects of ours while the agent, the controller, the sidecars, the API server and etcd are killed
//! at random.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use drumlin_tests::cluster::{Cluster, is_ready};
use kube::{
    Api, Client, Error,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    end_to_end::{claim, from_snapshot, snapshot_of},
    helpers::{get, put},
    node::{Node, manifest, volume},
    server,
    sidecars::{Kubelet, NODE, Stack},
};

/// So long a step of a life may take, with all that is killed meanwhile.
const PATIENCE: Duration = Duration::from_mins(5);
/// So many lives there are at a time.
const BESIDE: usize = 16;

/// How many there are: `DRUMLIN_LIVES`, else 24.
fn lives() -> usize {
    let wanted = std::env::var("DRUMLIN_LIVES");
    wanted.map_or(24, |wanted| wanted.parse().unwrap())
}

/// A number below `end` that nobody knows before.
pub(crate) fn below(end: u64) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let state = std::collections::hash_map::RandomState::new();
    state.build_hasher().finish() % end
}

/// The kinds of a life, as they are called here and as the server knows them.
const KINDS: [(&str, &str, &str, &str, &str); 6] = [
    (
        "pvc",
        "",
        "v1",
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
    ),
    ("pv", "", "v1", "PersistentVolume", "persistentvolumes"),
    (
        "volumesnapshot",
        "snapshot.storage.k8s.io",
        "v1",
        "VolumeSnapshot",
        "volumesnapshots",
    ),
    ("dv", "drumlin.dev", "v1alpha1", "Volume", "volumes"),
    (
        "dvg",
        "drumlin.dev",
        "v1alpha1",
        "VolumeGroup",
        "volumegroups",
    ),
    (
        "dgsnap",
        "drumlin.dev",
        "v1alpha1",
        "GroupSnapshot",
        "groupsnapshots",
    ),
];

/// So long the server may take to answer before it is asked again.
const ANSWER: Duration = Duration::from_secs(10);

/// Asks until it is answered, or told that there is no such thing.
async fn until_done<T>(what: &str, ask: impl AsyncFn() -> kube::Result<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        let refusal = match tokio::time::timeout(ANSWER, ask()).await {
            Ok(Ok(done)) => return Some(done),
            Ok(Err(Error::Api(status))) if status.code == 404 => return None,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        assert!(begun.elapsed() < PATIENCE, "{what}: {refusal}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// What a life asks a server that may be away.
struct Asking {
    client: Client,
    namespace: String,
}

impl Asking {
    fn api(&self, is_meant: impl Fn(&str, &str) -> bool) -> Api<DynamicObject> {
        let kind = KINDS.iter().find(|kind| is_meant(kind.0, kind.3));
        let (_, group, version, kind, plural) = kind.unwrap();
        let kind = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        if plural == &"persistentvolumes" {
            return Api::all_with(self.client.clone(), &resource);
        }
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    /// The objects of the kind and the name of an object that is called `kind/name`.
    fn named<'a>(&self, object: &'a str) -> (Api<DynamicObject>, &'a str) {
        let (kind, name) = object.split_once('/').unwrap();
        (self.api(|short, _| short == kind), name)
    }

    async fn apply(&self, text: &str) {
        let documents = serde_yaml::Deserializer::from_str(text);
        let objects: Vec<Value> = documents
            .map(|document| Value::deserialize(document).unwrap())
            .collect();
        for object in objects {
            let api = self.api(|_, kind| object["kind"] == kind);
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let how = PatchParams::apply("tests").force();
            let applied = until_done(&name, async || {
                api.patch(&name, &how, &Patch::Apply(&object)).await
            });
            assert!(applied.await.is_some(), "{name}");
        }
    }

    async fn change(&self, object: &str, change: &Value) {
        let (api, name) = self.named(object);
        let how = PatchParams::default();
        let changed = until_done(object, async || {
            api.patch(name, &how, &Patch::Merge(change)).await
        });
        assert!(changed.await.is_some(), "{object}");
    }

    async fn delete(&self, object: &str) {
        let (api, name) = self.named(object);
        let how = DeleteParams::default();
        until_done(object, async || api.delete(name, &how).await).await;
    }

    async fn find(&self, object: &str) -> Value {
        let (api, name) = self.named(object);
        let found = until_done(object, async || api.get(name).await).await;
        serde_json::to_value(found).unwrap()
    }

    async fn until(&self, object: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let now = self.find(object).await;
            if holds(&now) {
                return now;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{object} never came to be so: {now:#}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The volume of a claim, once it is bound.
    async fn volume_of(&self, claim: &str) -> Value {
        let is_bound = |now: &Value| now["status"]["phase"] == "Bound";
        let claim = self.until(&format!("pvc/{claim}"), is_bound).await;
        let volume = claim["spec"]["volumeName"].as_str().unwrap();
        self.find(&format!("pv/{volume}")).await
    }
}

/// A claim with something in it, a snapshot and a copy of that, which grows and has other attributes then, a
/// volume and the claim as a group, a moment of it, and a restore; and all of it taken down.
async fn live(asking: &Asking, kubelet: &Kubelet, number: usize) {
    let name = |of: &str| format!("{of}-{number}");
    asking.apply(&claim(&name("data"), "320Mi", "")).await;
    let data = asking.volume_of(&name("data")).await;
    let at = kubelet.mount(&data).await;
    put(&at, "file", name("precious").as_bytes());
    kubelet.unmount(&data).await;
    let members = format!(
        "members: [{{kind: PersistentVolumeClaim, name: {}}}, {{kind: Volume, name: {}}}]",
        name("data"),
        name("raw")
    );
    asking.apply(
        &[
            snapshot_of(&name("data"), &name("moment")),
            claim(&name("copy"), "320Mi", &from_snapshot(&name("moment"))),
            volume(
                &name("raw"),
                &format!("nodeName: {NODE}\n  capacity: 8Mi\n  volumeMode: Block\n  deletionPolicy: Delete"),
            ),
            manifest("VolumeGroup", &name("both"), &members),
            manifest("GroupSnapshot", &name("night"), &format!("groupName: {}", name("both"))),
            volume(
                &name("again"),
                &format!(
                    "capacity: 8Mi\n  volumeMode: Block\n  deletionPolicy: Delete\n  source: {{groupSnapshot: {{name: {}, member: {}}}}}",
                    name("night"),
                    name("raw")
                ),
            ),
        ]
        .concat(),
    )
    .await;
    let copy = asking.volume_of(&name("copy")).await;
    let at = kubelet.mount(&copy).await;
    assert_eq!(get(&at, "file"), name("precious").as_bytes());
    kubelet.unmount(&copy).await;
    let claim = format!("pvc/{}", name("copy"));
    let wider = json!({"spec": {
        "resources": {"requests": {"storage": "384Mi"}},
        "volumeAttributesClassName": "drumlin-unprotected",
    }});
    asking.change(&claim, &wider).await;
    let grown = format!("pv/{}", copy["metadata"]["name"].as_str().unwrap());
    let has_grown = |now: &Value| now["spec"]["capacity"]["storage"] == "384Mi";
    asking.until(&grown, has_grown).await;
    let is_modified =
        |now: &Value| now["status"]["currentVolumeAttributesClassName"] == "drumlin-unprotected";
    asking.until(&claim, is_modified).await;
    let ours = ["dv/raw", "dvg/both", "dgsnap/night", "dv/again"].map(name);
    for object in &ours {
        asking.until(object, is_ready).await;
    }
    let theirs = ["volumesnapshot/moment", "pvc/copy", "pvc/data"].map(name);
    for object in ours.iter().chain(&theirs) {
        asking.delete(object).await;
    }
    for object in ours.iter().chain(&theirs) {
        asking.until(object, Value::is_null).await;
    }
}

/// What kubelet does: sidecars end when the agent's socket is gone for long, and when they begin without a server.
pub(crate) fn restart_ended(stack: &mut Stack) {
    for daemon in stack.daemons.values_mut() {
        if !daemon.is_running() {
            daemon.restart();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
#[expect(clippy::print_stdout, reason = "a figure")]
async fn nothing_is_lost_or_left_whatever_is_killed() {
    let mut stack = Stack::start().await;
    let space = stack.cluster.namespace();
    let client = stack.cluster.client().await;
    let are_over = Arc::new(AtomicBool::new(false));
    let living = all_lives(&client, &space.name, &stack.kubelet());
    let over = Arc::clone(&are_over);
    let ended = tokio::spawn(async move {
        let ended = futures::future::join_all(living).await;
        over.store(true, Ordering::Relaxed);
        ended
    });
    let kills = kill_until(&are_over, &mut stack).await;
    let failed = ended
        .await
        .unwrap()
        .into_iter()
        .filter_map(Result::err)
        .count();
    assert_eq!(failed, 0, "{}", stack.logs());
    println!("{} lives; killed: {kills:?}", lives());
    for part in ["agent", "controller", "kube-apiserver"] {
        assert!(kills.contains_key(part), "{part}: {kills:?}");
    }

    no_object_is_left(&mut stack).await;
    let node = Node {
        agent: stack.agent,
        name: NODE.to_owned(),
    };
    assert_eq!(node.holds().await, (0, 0));
    let listed = node.agent.status().0;
    assert!(!listed.contains("Orphan"), "{listed}");
    let groups = drumlin_proto::volumegroup::ListVolumeGroupsRequest::default();
    let groups = node
        .agent
        .groups()
        .list_volume_groups(groups)
        .await
        .unwrap();
    assert!(groups.into_inner().entries.is_empty());
}

/// Begins all lives, some at a time.
fn all_lives(client: &Client, namespace: &str, kubelet: &Kubelet) -> Vec<JoinHandle<()>> {
    let next = Arc::new(AtomicUsize::new(0));
    let living = (0..BESIDE).map(|_| {
        let asking = Asking {
            client: client.clone(),
            namespace: namespace.to_owned(),
        };
        let (next, kubelet) = (Arc::clone(&next), kubelet.clone());
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= lives() {
                    return;
                }
                runtime.block_on(live(&asking, &kubelet, number));
            }
        })
    });
    living.collect()
}

fn restart_of_the_server(cluster: &Cluster, program: &str) {
    server::kill(cluster, program);
    server::start(cluster, program);
}

/// Kills one after the other until the lives are over; says how often each.
async fn kill_until(are_over: &AtomicBool, stack: &mut Stack) -> BTreeMap<String, usize> {
    let mut kills = BTreeMap::new();
    // The controller first: the sidecars are one container beside it, each.
    let mut others: Vec<String> = stack.daemons.keys().cloned().collect();
    others.sort_by_key(|name| name != "controller");
    let mut others = others.iter().cycle();
    for turn in 0.. {
        tokio::time::sleep(Duration::from_millis(2000 + below(5000))).await;
        if are_over.load(Ordering::Relaxed) {
            break;
        }
        restart_ended(stack);
        // The agent most often: a server takes seconds to come back.
        let victim = match turn % 12 {
            2 => "kube-apiserver",
            8 => "etcd",
            turn if turn % 2 == 0 => "agent",
            _ => others.next().unwrap(),
        };
        match victim {
            "kube-apiserver" | "etcd" => restart_of_the_server(&stack.cluster, victim),
            "agent" => {
                stack.agent.kill();
                stack.agent.restart().await;
            }
            other => stack.daemons.get_mut(other).unwrap().restart(),
        }
        *kills.entry(victim.to_owned()).or_default() += 1;
    }
    kills
}

async fn no_object_is_left(stack: &mut Stack) {
    let kinds = "pv,pvc,volumesnapshots,volumesnapshotcontents,dv,dvg,dsnap,dgsnap";
    let words = ["get", kinds, "-A", "-o", "name"];
    let begun = Instant::now();
    loop {
        // The last kill may have been of the server, and have ended sidecars with it.
        restart_ended(stack);
        let left = stack.cluster.try_kubectl(&words);
        if left.status.success() && left.stdout.is_empty() {
            break;
        }
        let logs = || format!("{left:?}\n{}\n{}", stack.logs(), stack.agent.log());
        assert!(begun.elapsed() < PATIENCE, "{}", logs());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
