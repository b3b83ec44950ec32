//! The CSI front of the cluster, asked as its sidecars ask it: where volumes are made, and what becomes of calls whose agent
//! or node is away.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{
    CreateVolumeRequest, GetCapacityRequest, ListSnapshotsRequest, Topology, TopologyRequirement,
    controller_client::ControllerClient, group_controller_client::GroupControllerClient,
};
use drumlin_tests::{
    agent::eventually,
    requests::{
        MIB, create, create_group_snapshot, delete, delete_snapshot, expand, from_volume, mounted,
        raw, snapshot,
    },
};
use tonic::{Code, Request, Status, transport::Channel};

use crate::{
    helpers::{home, ok},
    rbac::{SYSTEM, persistent},
    sidecars::{Stack, agent_is_ready},
};

const KEY: &str = "topology.drumlin.dev/node";

fn on(node: &str) -> Topology {
    Topology {
        segments: [(KEY.to_owned(), node.to_owned())].into(),
    }
}

/// As the provisioner asks for a volume that shall be on one of these, preferably the first.
pub(crate) fn create_on(name: &str, mebibytes: i64, nodes: &[&str]) -> CreateVolumeRequest {
    let nodes: Vec<Topology> = nodes.iter().map(|node| on(node)).collect();
    CreateVolumeRequest {
        accessibility_requirements: (!nodes.is_empty()).then(|| TopologyRequirement {
            requisite: nodes.clone(),
            preferred: nodes,
        }),
        ..create(name, mebibytes, &raw())
    }
}

#[derive(Clone)]
pub(crate) struct Asking {
    channel: Channel,
}

impl Asking {
    pub(crate) fn new(stack: &Stack) -> Self {
        Self::over(&stack.front())
    }

    pub(crate) fn over(socket: &Path) -> Self {
        Self {
            channel: drumlin_proto::connect(socket).unwrap(),
        }
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub(crate) fn groups(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel.clone())
    }

    /// The id of a volume that is made.
    pub(crate) async fn create(&self, request: CreateVolumeRequest) -> Result<String, Status> {
        let mut request = Request::new(request);
        request.set_timeout(Duration::from_mins(1));
        let made = self.controller().create_volume(request).await?;
        let volume = made.into_inner().volume.unwrap();
        let node = volume.volume_id.split('/').next().unwrap().to_owned();
        assert_eq!(volume.accessible_topology, vec![on(&node)]);
        Ok(volume.volume_id)
    }

    pub(crate) async fn delete(&self, id: &str) -> Result<(), Status> {
        let mut request = Request::new(delete(id));
        request.set_timeout(Duration::from_mins(1));
        self.controller().delete_volume(request).await.map(drop)
    }

    async fn capacity(&self, node: &str, class: Option<&str>) -> i64 {
        let class = class.map(|class| ("class".to_owned(), class.to_owned()));
        let request = GetCapacityRequest {
            accessible_topology: Some(on(node)),
            parameters: class.into_iter().collect(),
            ..GetCapacityRequest::default()
        };
        match self.controller().get_capacity(request).await {
            Ok(answer) => answer.into_inner().available_capacity,
            // It has not reported yet.
            Err(status) if status.code() == Code::Unavailable => 0,
            Err(status) => panic!("{status:?}"),
        }
    }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, part: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(part), "{status:?}");
}

/// The calls to nodes that there are, a line each.
pub(crate) fn calls(stack: &Stack) -> String {
    let words = ["-n", SYSTEM, "get", "nodecalls", "-o", "name"];
    stack.cluster.kubectl(&words)
}

/// Waits until no call is left.
pub(crate) async fn no_call_is_left(stack: &Stack) {
    eventually(|| calls(stack), String::is_empty).await;
}

/// The handles of the volumes of a node that no PersistentVolume is about, as the audit lists them, sorted.
pub(crate) fn unclaimed(stack: &Stack, node: &str) -> Vec<String> {
    let path = "jsonpath={.status.unclaimed[*].volumeHandle}";
    let words = ["get", "nodestorage", node, "-o", path];
    let text = stack.cluster.kubectl(&words);
    let mut handles: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    handles.sort();
    handles
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_made_where_it_belongs_and_everything_about_it_goes_there() {
    let stack = Stack::of_nodes(&["node-a", "node-b"]).await;
    let asking = Asking::new(&stack);
    let both = ["node-b", "node-a"];
    the_room_of_each_is_known(&stack, &asking, &both).await;

    // The preferred node is that of the scheduler.
    let one = ok_id(asking.create(create_on("one", 64, &both)).await);
    assert!(one.starts_with("node-b/"), "{one}");
    let two = ok_id(asking.create(create_on("two", 64, &["node-a"])).await);
    assert!(two.starts_with("node-a/"), "{two}");
    // Asked again, it is the same.
    assert_eq!(ok_id(asking.create(create_on("one", 64, &both)).await), one);
    refused(
        asking
            .create(create_on("one", 128, &["node-b"]))
            .await
            .map(|id| (id, "larger")),
        Code::AlreadyExists,
        "one",
    );
    // A copy is where its source is, whatever was selected.
    let copy = CreateVolumeRequest {
        volume_content_source: from_volume(&one),
        ..create_on("copy", 64, &["node-a", "node-b"])
    };
    let copy_id = ok_id(asking.create(copy.clone()).await);
    assert!(copy_id.starts_with("node-b/"), "{copy_id}");
    let elsewhere = CreateVolumeRequest {
        name: "elsewhere".to_owned(),
        accessibility_requirements: create_on("", 1, &["node-a"]).accessibility_requirements,
        ..copy
    };
    refused(
        asking.create(elsewhere).await,
        Code::InvalidArgument,
        "node-b",
    );
    // Nothing required: somewhere with room.
    let free = ok_id(asking.create(create_on("free", 64, &[])).await);
    // No node has room.
    refused(
        asking.create(create_on("huge", 1 << 20, &both)).await,
        Code::ResourceExhausted,
        "",
    );

    nothing_grows_beyond_its_node(&asking, &two).await;
    snapshots_are_on_their_node(&asking, (&one, &two)).await;

    for id in [&one, &two, &copy_id, &free] {
        asking.delete(id).await.unwrap();
        asking.delete(id).await.unwrap();
    }
    // What cannot be is gone already.
    asking.delete("no-handle").await.unwrap();
    refused(asking.delete("").await, Code::InvalidArgument, "volume_id");
    no_call_is_left(&stack).await;
    for agent in [&stack.agent].into_iter().chain(&stack.others) {
        let images = agent.path("state/images/volumes");
        let left = std::fs::read_dir(images).map_or(0, Iterator::count);
        assert_eq!(left, 0);
    }
    let storages = stack.cluster.kubectl(&["get", "nodestorage"]);
    assert!(
        storages.contains("node-a") && storages.contains("true"),
        "{storages}"
    );
    stack.needed_no_more_rights();
}

pub(crate) async fn the_room_of_each_is_known(stack: &Stack, asking: &Asking, nodes: &[&str]) {
    for node in nodes {
        let begun = Instant::now();
        while asking.capacity(node, None).await == 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "{}",
                stack.logs()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(asking.capacity(node, Some("other")).await, 0);
    }
    assert_eq!(asking.capacity("node-c", None).await, 0);
}

fn ok_id(answer: Result<String, Status>) -> String {
    answer.unwrap()
}

async fn nothing_grows_beyond_its_node(asking: &Asking, id: &str) {
    let grow = |mebibytes: i64| expand(id, mebibytes);
    // The resizer would repeat RESOURCE_EXHAUSTED for ever.
    let mut controller = asking.controller();
    let huge = controller.controller_expand_volume(grow(1 << 20)).await;
    refused(huge, Code::OutOfRange, "");
    let grown = ok(controller.controller_expand_volume(grow(96)).await);
    assert_eq!(grown.capacity_bytes, 96 * MIB);
}

async fn snapshots_are_on_their_node(asking: &Asking, (one, two): (&str, &str)) {
    let mut controller = asking.controller();
    let taken = ok(controller.create_snapshot(snapshot("s", one)).await);
    let taken = taken.snapshot.unwrap();
    assert!(taken.snapshot_id.starts_with("node-b/"), "{taken:?}");
    let list = |snapshot: &str| ListSnapshotsRequest {
        snapshot_id: snapshot.to_owned(),
        ..ListSnapshotsRequest::default()
    };
    let found = ok(controller.list_snapshots(list(&taken.snapshot_id)).await);
    assert_eq!(found.entries.len(), 1);
    let none = ok(controller.list_snapshots(list("no-handle")).await);
    assert!(none.entries.is_empty());
    // Of all nodes, node by node.
    let other = ok(controller.create_snapshot(snapshot("t", two)).await);
    let other = other.snapshot.unwrap();
    let mut ids = Vec::new();
    let mut request = list("");
    loop {
        let page = ok(controller.list_snapshots(request.clone()).await);
        let found = page.entries.into_iter().filter_map(|entry| entry.snapshot);
        ids.extend(found.map(|snapshot| snapshot.snapshot_id));
        if page.next_token.is_empty() {
            break;
        }
        request.starting_token = page.next_token;
    }
    ids.sort();
    let mut wanted = vec![taken.snapshot_id.clone(), other.snapshot_id.clone()];
    wanted.sort();
    assert_eq!(ids, wanted);

    // A group snapshot is of one node.
    let mut groups = asking.groups();
    let apart = create_group_snapshot("g", vec![one.to_owned(), two.to_owned()]);
    let apart = groups.create_volume_group_snapshot(apart).await;
    refused(apart, Code::FailedPrecondition, "several nodes");
    for id in [&taken.snapshot_id, &other.snapshot_id] {
        ok(controller.delete_snapshot(delete_snapshot(id)).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_to_a_node_that_is_away_or_gone_ends_as_its_sidecar_needs_it() {
    let mut stack = Stack::of_nodes(&["node-a", "node-b"]).await;
    let asking = Asking::new(&stack);
    let there = ok_id(asking.create(create_on("there", 64, &["node-b"])).await);

    // Away: another node will do for a fresh volume, and nothing is left that could be made later.
    stack.others[0].kill();
    agent_is_ready(&stack.cluster, "node-b", false);
    let begun = Instant::now();
    let fresh = asking.create(create_on("fresh", 64, &["node-b"])).await;
    refused(fresh, Code::ResourceExhausted, "node-b");
    assert!(
        begun.elapsed() > Duration::from_secs(14),
        "{:?}",
        begun.elapsed()
    );
    no_call_is_left(&stack).await;
    let copy = CreateVolumeRequest {
        volume_content_source: from_volume(&there),
        ..create_on("copy", 64, &["node-b"])
    };
    refused(
        asking.create(copy.clone()).await,
        Code::Unavailable,
        "node-b",
    );
    refused(asking.delete(&there).await, Code::Unavailable, "node-b");

    // Back again.
    stack.others[0].restart().await;
    agent_is_ready(&stack.cluster, "node-b", true);
    let copied = ok_id(asking.create(copy).await);
    assert!(copied.starts_with("node-b/"), "{copied}");

    // Gone: what there was is given up by an administrator alone.
    stack.others[0].kill();
    stack.cluster.kubectl(&["delete", "node", "node-b"]);
    let fresh = asking.create(create_on("fresh", 64, &["node-b"])).await;
    refused(fresh, Code::ResourceExhausted, "node-b");
    refused(
        asking.delete(&there).await,
        Code::FailedPrecondition,
        "kubectl annotate nodestorage node-b drumlin.dev/abandon=node-b",
    );
    let wrong = [
        "annotate",
        "nodestorage",
        "node-b",
        "drumlin.dev/abandon=node-a",
    ];
    stack.cluster.kubectl(&wrong);
    refused(
        asking.delete(&there).await,
        Code::FailedPrecondition,
        "abandon",
    );
    let right = [
        "annotate",
        "--overwrite",
        "nodestorage",
        "node-b",
        "drumlin.dev/abandon=node-b",
    ];
    stack.cluster.kubectl(&right);
    let begun = Instant::now();
    while let Err(status) = asking.delete(&there).await {
        assert!(begun.elapsed() < Duration::from_secs(20), "{status:?}");
    }
    assert_eq!(asking.capacity("node-b", None).await, 0);
    no_call_is_left(&stack).await;
}

/// As the provisioner names a volume for the claim with this UID.
fn create_for(claim: &str, uid: &str) -> CreateVolumeRequest {
    let parameters = [
        ("csi.storage.k8s.io/pvc/name", claim),
        ("csi.storage.k8s.io/pvc/namespace", "default"),
    ];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
    CreateVolumeRequest {
        parameters: parameters.into(),
        volume_capabilities: vec![mounted("ext4")],
        ..create_on(&format!("pvc-{uid}"), 64, &["node-a"])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_deletes_what_was_never_used_and_lists_what_may_hold_data() {
    // Six hours are six seconds.
    let stack = Stack::with(&["node-a"], &[("DRUMLIN_TIME_LAPSE", "3600")]).await;
    let asking = Asking::new(&stack);
    // A claim that waits for its volume.
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: waiting}\nspec: {storageClassName: none, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n";
    let made = stack.cluster.try_with_input(&["create", "-f", "-"], claim);
    assert!(made.status.success(), "{made:?}");
    let uid = ["get", "pvc/waiting", "-o", "jsonpath={.metadata.uid}"];
    let uid = stack.cluster.kubectl(&uid);
    let digits = |digit: &str| {
        [8, 4, 4, 4, 12]
            .map(|length| digit.repeat(length))
            .join("-")
    };
    let waiting = ok_id(asking.create(create_for("waiting", &uid)).await);
    let bound = ok_id(asking.create(create_for("bound", &digits("1"))).await);
    let volume = persistent("bound", "csi.drumlin.dev", &bound);
    let made = stack
        .cluster
        .try_with_input(&["create", "-f", "-"], &volume);
    assert!(made.status.success(), "{made:?}");
    // Its node has other disks now, say.
    let handle = format!("node-a/default/{}", digits("4"));
    let missing = persistent("missing", "csi.drumlin.dev", &handle);
    let made = stack
        .cluster
        .try_with_input(&["create", "-f", "-"], &missing);
    assert!(made.status.success(), "{made:?}");
    let used = ok_id(asking.create(create_for("used", &digits("2"))).await);
    let as_volume = serde_json::json!({
        "metadata": {"name": "used"},
        "spec": {"csi": {"volumeHandle": used, "fsType": "ext4"}},
    });
    stack.kubelet().mount(&as_volume).await;
    stack.kubelet().unmount(&as_volume).await;
    let by_hand = ok_id(asking.create(create_on("by-hand", 64, &["node-a"])).await);
    let leaked = ok_id(asking.create(create_for("leaked", &digits("3"))).await);
    // Never used either, but nobody can delete it.
    let protected = CreateVolumeRequest {
        mutable_parameters: [("protected".to_owned(), "true".to_owned())].into(),
        ..create_for("protected", &digits("5"))
    };
    let protected = ok_id(asking.create(protected).await);

    let listed = || unclaimed(&stack, "node-a");
    let mut wanted = vec![used.clone(), by_hand.clone(), protected.clone()];
    wanted.sort();
    let all = [&waiting, &bound, &used, &by_hand, &leaked];
    stack.eventually(|| (listed(), all), |(found, _)| *found == wanted);
    let there = |id: &str| home(&stack.agent, id).exists();
    stack.eventually(|| there(&leaked), |is_there| !is_there);
    for kept in [&waiting, &bound, &used, &by_hand, &protected] {
        assert!(there(kept), "{kept}");
    }
    let events = [
        "get",
        "events",
        "--field-selector=reason=VolumeNotFound",
        "-o",
        "jsonpath={.items[*].involvedObject.name}",
    ];
    let told = || stack.cluster.kubectl(&events);
    stack.eventually(told, |told| told.split(' ').any(|name| name == "missing"));
    assert!(
        told().split(' ').all(|name| name == "missing"),
        "{}",
        told()
    );
    no_call_is_left(&stack).await;
    stack.needed_no_more_rights();
}
