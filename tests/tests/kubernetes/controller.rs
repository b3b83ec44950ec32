//! The controller: claims of users in groups, objects that name no node, nodes that are gone.

use std::time::Duration;

use drumlin_proto::csi::v1::CreateVolumeRequest;
use drumlin_tests::{
    agent::Options,
    cluster::{Cluster, Namespace, condition},
    daemon::Daemon,
    programs::drumlin,
    requests::{create, mounted},
};
use serde_json::{Value, json};

use crate::{
    helpers::ok,
    node::{Node, manifest, volume},
};

/// Starts a controller.
fn controller(cluster: &Cluster, arguments: &[&str]) -> Daemon {
    let told = ["controller", "--namespace", "default"];
    let told = told.iter().chain(arguments).map(|word| (*word).to_owned());
    let told: Vec<String> = told.chain(cluster.arguments()).collect();
    Daemon::start(drumlin(), &told, &[])
}

/// A volume as the provisioner has one made, with the volume and the claim that it writes. No controller of Kubernetes runs
/// here that would bind them.
async fn claimed(
    cluster: &Cluster,
    space: &Namespace<'_>,
    node: &Node,
    name: &str,
    labels: &str,
) -> String {
    let request: CreateVolumeRequest = create(&format!("pvc-{name}"), 32, &mounted("ext4"));
    let made = ok(node.agent.controller().create_volume(request).await);
    let handle = made.volume.unwrap().volume_id;
    bind(cluster, space, name, labels, &handle);
    handle
}

fn bind(cluster: &Cluster, space: &Namespace<'_>, name: &str, labels: &str, handle: &str) {
    let volume = format!("{}-{name}", space.name);
    space.apply(&claim(&volume, name, labels));
    let uid = space.get(&format!("pvc/{name}"))["metadata"]["uid"].clone();
    let uid = uid.as_str().unwrap();
    space.apply(&format!(
        "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {volume}}}\nspec:\n  storageClassName: drumlin\n  accessModes: [ReadWriteOnce]\n  capacity: {{storage: 32Mi}}\n  claimRef: {{kind: PersistentVolumeClaim, namespace: {}, name: {name}, uid: {uid}}}\n  csi: {{driver: csi.drumlin.dev, volumeHandle: {handle}}}\n",
        space.name
    ));
    is_bound(space, name);
    // No kubelet runs here that would see that nothing uses it.
    let bare = r#"{"metadata": {"finalizers": null}}"#;
    space.kubectl(&["patch", "pvc", name, "--type=merge", "-p", bare]);
    cluster.kubectl(&["patch", "pv", &volume, "--type=merge", "-p", bare]);
}

/// A claim of a volume that it names.
fn claim(volume: &str, name: &str, labels: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, labels: {{{labels}}}}}\nspec:\n  volumeName: {volume}\n  storageClassName: drumlin\n  accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: 32Mi}}}}\n"
    )
}

/// Has a claim say that it is bound.
fn is_bound(space: &Namespace<'_>, name: &str) {
    let bound = r#"{"status": {"phase": "Bound"}}"#;
    let patch = ["patch", "pvc", name, "--subresource=status"];
    space.kubectl(&[patch.as_slice(), &["--type=merge", "-p", bound]].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_are_members_of_groups_and_sources_of_snapshots() {
    // Of its own: a controller sees all there is.
    let cluster = Cluster::own();
    let (node, other) = (Node::start(&cluster).await, Node::start(&cluster).await);
    let (working, space) = (controller(&cluster, &[]), cluster.namespace());
    let data = claimed(&cluster, &space, &node, "data", "app: pg").await;
    let wal = claimed(&cluster, &space, &node, "wal", "app: pg").await;
    space.apply(
        &[
            manifest(
                "VolumeGroup",
                "pg",
                "selector: {matchLabels: {app: pg}}\n  minMembers: 2",
            ),
            manifest("GroupSnapshot", "moment", "groupName: pg"),
            manifest(
                "Snapshot",
                "one",
                "source: {persistentVolumeClaimName: data}",
            ),
            volume(
                "again",
                "capacity: 32Mi\n  source: {groupSnapshot: {name: moment, member: wal}}",
            ),
        ]
        .concat(),
    );
    let group = space.until_ready("dvg/pg");
    assert_eq!(group["spec"]["nodeName"], node.name.as_str());
    its_members_are(&group, [&data, &wal]);
    for object in ["dgsnap/moment", "dsnap/one", "dv/again"] {
        space.until_ready(object);
    }
    assert_eq!(
        space.get("dsnap/one")["status"]["sourceVolumeHandle"],
        json!(data)
    );

    // A claim that goes leaves its group, so that its volume can be deleted; one that comes joins.
    space.kubectl(&["delete", "pvc/wal", "--timeout=20s"]);
    let has = |count: u64| move |now: &Value| now["status"]["memberCount"] == count;
    space.until("dvg/pg", has(1));
    claimed(&cluster, &space, &node, "more", "app: pg").await;
    space.until("dvg/pg", has(2));
    space.until_ready("dvg/pg");
    what_a_claim_has_left_is_not_its_heirs(&cluster, &space, &node).await;
    members_of_two_nodes_are_no_group(&cluster, &space, &other).await;
    nothing_is_written_any_more(&space, &working);
}

/// The members of a group are these claims, and all have joined.
fn its_members_are(group: &Value, wanted: [&String; 2]) {
    let handles: Vec<_> = group["status"]["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| {
            (
                member["kind"].clone(),
                member["volumeHandle"].clone(),
                member["state"].clone(),
            )
        })
        .collect();
    let member = |handle: &String| {
        (
            json!("PersistentVolumeClaim"),
            json!(handle),
            json!("Joined"),
        )
    };
    assert_eq!(handles, wanted.map(member));
}

/// What a claim has left belongs to no later one of its name: Kubernetes does not bind the two, whatever that one names.
async fn what_a_claim_has_left_is_not_its_heirs(
    cluster: &Cluster,
    space: &Namespace<'_>,
    node: &Node,
) {
    claimed(cluster, space, node, "left", "").await;
    space.kubectl(&["delete", "pvc/left", "--timeout=20s"]);
    space.apply(&claim(&format!("{}-left", space.name), "left", ""));
    let of = |name: &str, claim: &str| {
        let source = format!("source: {{persistentVolumeClaimName: {claim}}}");
        manifest("Snapshot", name, &source)
    };
    space.apply(&of("theirs", "left"));
    space.apply(&of("after", "data"));
    space.until_ready("dsnap/after");
    let theirs = space.get("dsnap/theirs");
    assert_eq!(theirs["spec"]["nodeName"], json!(null), "{theirs:#}");
    assert_eq!(theirs["status"]["candidates"], json!(null), "{theirs:#}");
}

async fn members_of_two_nodes_are_no_group(cluster: &Cluster, space: &Namespace<'_>, other: &Node) {
    let elsewhere = claimed(cluster, space, other, "elsewhere", "app: other").await;
    assert!(elsewhere.starts_with(&other.name));
    let mixed = "members: [{kind: PersistentVolumeClaim, name: data}, {kind: PersistentVolumeClaim, name: elsewhere}]";
    space.apply(&manifest("VolumeGroup", "mixed", mixed));
    let mixed = space.until_reason("dvg/mixed", "MembersOnOtherNode");
    assert!(condition(&mixed, "Stalled").is_some());
    assert_eq!(mixed["spec"]["nodeName"], json!(null));
}

/// Nothing changes any more, so nothing is written.
fn nothing_is_written_any_more(space: &Namespace<'_>, working: &Daemon) {
    // Of this one it would be said that nobody gives it a node.
    space.kubectl(&["delete", "dsnap/theirs"]);
    std::thread::sleep(Duration::from_secs(2));
    let versions = || {
        space.kubectl(&[
            "get",
            "dv,dvg,dsnap,dgsnap",
            "-o",
            "jsonpath={.items[*].metadata.resourceVersion}",
        ])
    };
    let before = versions();
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(versions(), before, "{}", working.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_works_and_the_other_when_it_has_ended() {
    let cluster = Cluster::own();
    let options = Options {
        arguments: vec!["--claim=controller".to_owned()],
        ..Options::default()
    };
    let node = Node::with(&cluster, options).await;
    let arguments = ["--claim=controller"];
    let mut first = controller(&cluster, &arguments);
    let leads = |one: &Daemon| one.log().contains("controller leads");
    drumlin_tests::agent::eventually(|| leads(&first), |leads| *leads).await;
    let second = controller(&cluster, &arguments);
    let space = cluster.namespace();
    space.apply(
        &[
            node.volume("data", "32Mi", ""),
            volume("copy", "capacity: 32Mi\n  source: {volumeName: data}"),
        ]
        .concat(),
    );
    space.until_ready("dv/copy");
    assert!(!leads(&second));
    first.stop();
    space.apply(&volume(
        "another",
        "capacity: 32Mi\n  source: {volumeName: data}",
    ));
    space.until_ready("dv/another");
    assert!(leads(&second));
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_node_that_is_gone_say_so_and_go_when_it_is_given_up() {
    let cluster = Cluster::own();
    let mut node = Node::start(&cluster).await;
    let object = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {}}}\n",
        node.name
    );
    assert!(
        cluster
            .try_with_input(&["create", "-f", "-"], &object)
            .status
            .success()
    );
    let _controller = controller(&cluster, &["--node-grace", "1"]);
    let space = cluster.namespace();
    space.apply(&node.volume("data", "32Mi", "deletionPolicy: Delete"));
    space.until_ready("dv/data");
    node.agent.kill();
    cluster.kubectl(&["delete", "node", &node.name]);
    let lost = space.until_reason("dv/data", "NodeLost");
    assert_eq!(condition(&lost, "Ready").unwrap()["status"], "Unknown");

    // A node that comes back has what it had.
    assert!(
        cluster
            .try_with_input(&["create", "-f", "-"], &object)
            .status
            .success()
    );
    node.restart_with(&cluster, Options::default()).await;
    space.until_ready("dv/data");
    node.agent.kill();
    cluster.kubectl(&["delete", "node", &node.name]);
    space.until_reason("dv/data", "NodeLost");
    space.kubectl(&["delete", "dv/data", "--wait=false"]);
    std::thread::sleep(Duration::from_secs(12));
    assert!(
        space.find("dv/data").is_some(),
        "nobody has given the node up"
    );
    let abandon = format!("drumlin.dev/abandon={}", node.name);
    space.kubectl(&["annotate", "dv/data", &abandon]);
    space.until_gone("dv/data");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_gives_a_node_says_what_it_lacks() {
    let cluster = Cluster::own();
    let node = Node::start(&cluster).await;
    let (_working, space) = (controller(&cluster, &[]), cluster.namespace());
    space.apply(
        &[
            volume("blank", "capacity: 32Mi\n  deletionPolicy: Delete"),
            volume(
                "copy",
                "capacity: 32Mi\n  deletionPolicy: Delete\n  source: {volumeName: blank}",
            ),
            manifest(
                "Snapshot",
                "of-claim",
                "source: {persistentVolumeClaimName: nix}",
            ),
        ]
        .concat(),
    );
    let said = |object: &str, what: &str| {
        let now = space.until_reason(object, "NodeUnset");
        let message = condition(&now, "Ready").unwrap()["message"].to_string();
        assert!(message.contains(what), "{message}");
    };
    said("dv/blank", "spec.nodeName is not set; set it");
    said("dv/copy", "blank");
    said("dsnap/of-claim", "PersistentVolumeClaim nix");

    // Once it has one nothing of that is left, and what is made of it follows.
    let named = format!(r#"{{"spec": {{"nodeName": "{}"}}}}"#, node.name);
    space.kubectl(&["patch", "dv/blank", "--type=merge", "-p", &named]);
    for object in ["dv/blank", "dv/copy"] {
        space.until_ready(object);
        let is_clean = |now: &Value| condition(now, "Reconciling").is_none();
        space.until(object, is_clean);
        space.until_ready(object);
    }
}
