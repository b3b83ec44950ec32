//! Objects under `kubectl`: made, grown, claimed, snapshotted, restored, kept and deleted.

use std::time::Duration;

use drumlin_tests::{
    agent::{Options, eventually},
    cluster::{Cluster, condition},
};
use serde_json::json;

use crate::node::{Node, manifest, volume};

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_made_grown_kept_found_again_and_deleted() {
    let cluster = Cluster::of_the_lab();
    let (node, space) = (Node::start(&cluster).await, cluster.namespace());
    space.apply(&node.volume("data", "32Mi", ""));
    let made = space.until_ready("dv/data");
    assert_eq!(made["metadata"]["finalizers"], json!(["drumlin.dev/agent"]));
    assert_eq!(made["status"]["capacity"], "32Mi");
    let handle = made["status"]["volumeHandle"].clone();
    assert!(
        handle
            .as_str()
            .unwrap()
            .starts_with(&format!("{}/default/", node.name))
    );
    assert!(node.agent.status().0.contains("True"));
    // It is sent after the status.
    eventually(
        || space.kubectl(&["get", "events.events.k8s.io", "-o", "json"]),
        |events| events.contains("\"reason\": \"Created\""),
    )
    .await;

    space.apply(&node.volume("data", "48Mi", ""));
    let grown = space.until_ready("dv/data");
    assert_eq!(grown["status"]["capacity"], "48Mi");

    // Its deletion policy is Retain.
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    assert_eq!(node.holds().await, (1, 0));
    space.apply(&node.volume("data", "48Mi", "deletionPolicy: Delete"));
    let again = space.until_ready("dv/data");
    assert_eq!(again["status"]["volumeHandle"], handle);
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    assert_eq!(node.holds().await, (0, 0));
    // The agent hears of it when who deletes it does.
    eventually(
        || node.agent.status().0,
        |table| table.contains("no objects"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_never_begun_has_no_finalizer_and_goes_at_once() {
    let cluster = Cluster::of_the_lab();
    let (node, space) = (Node::start(&cluster).await, cluster.namespace());
    space.apply(&node.volume("copy", "32Mi", "source: {volumeName: none}"));
    let waiting = space.until_reason("dv/copy", "DependencyNotFound");
    assert_eq!(waiting["metadata"]["finalizers"], json!(null));
    space.kubectl(&["delete", "dv/copy", "--timeout=10s"]);
    assert_eq!(node.holds().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_and_its_snapshot_are_claimed_taken_and_restored() {
    let cluster = Cluster::of_the_lab();
    let (node, other) = (Node::start(&cluster).await, Node::start(&cluster).await);
    let space = cluster.namespace();
    let delete = "deletionPolicy: Delete";
    // Without a node: whoever has the volumes has the group, and the snapshot of it, and what is restored from that.
    let member = "capacity: 32Mi\n  deletionPolicy: Delete\n  source: {groupSnapshot: {name: moment, member: wal}}";
    space.apply(
        &[
            node.volume("wal", "32Mi", delete),
            node.volume("data", "32Mi", delete),
            manifest(
                "VolumeGroup",
                "pg",
                "members: [{kind: Volume, name: wal}, {kind: Volume, name: data}]\n  minMembers: 2",
            ),
            manifest("GroupSnapshot", "moment", "groupName: pg"),
            manifest("Snapshot", "one", "source: {volumeName: data}"),
            volume("wal-again", member),
        ]
        .concat(),
    );
    for object in ["dvg/pg", "dgsnap/moment", "dsnap/one", "dv/wal-again"] {
        let ready = space.until_ready(object);
        assert_eq!(ready["spec"]["nodeName"], node.name.as_str(), "{object}");
    }
    let moment = space.get("dgsnap/moment");
    assert_eq!(moment["status"]["memberCount"], 2);
    assert_eq!(space.get("dv/wal")["status"]["groupName"], "pg");
    assert_eq!(node.holds().await, (3, 3));
    assert_eq!(other.holds().await, (0, 0));
    assert!(
        !other.agent.log().contains(&space.name),
        "the other node was told nothing"
    );

    // In no order: each waits for what must go first.
    space.kubectl(&["delete", "dv,dvg,dsnap,dgsnap", "--all", "--timeout=60s"]);
    assert_eq!(node.holds().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_writes_nothing_and_a_still_life_writes_nothing() {
    let cluster = Cluster::of_the_lab();
    let (mut node, space) = (Node::start(&cluster).await, cluster.namespace());
    let many: String = (0..100)
        .map(|number| node.volume(&format!("v{number:02}"), "1Mi", "volumeMode: Block"))
        .collect();
    space.apply(&many);
    space.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "dv",
        "--all",
        "--timeout=120s",
    ]);
    let versions = || {
        space.kubectl(&[
            "get",
            "dv",
            "-o",
            "jsonpath={.items[*].metadata.resourceVersion}",
        ])
    };
    // The last ones may just be told.
    std::thread::sleep(Duration::from_secs(2));
    let before = versions();
    node.restart_with(&cluster, Options::default()).await;
    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(versions(), before);
    let log = node.agent.log();
    let restarted = log.rsplit("agent started").next().unwrap();
    assert!(!restarted.contains("volume created"), "{restarted}");
    space.kubectl(&["delete", "dv", "--all", "--timeout=120s"]);
    assert_eq!(node.holds().await, (100, 0), "they are kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_shall_be_absent_is_destroyed_and_the_object_stays() {
    let cluster = Cluster::of_the_lab();
    let (node, space) = (Node::start(&cluster).await, cluster.namespace());
    space.apply(&node.volume("data", "32Mi", "deletionPolicy: Delete"));
    space.until_ready("dv/data");
    space.kubectl(&["annotate", "dv/data", "drumlin.dev/state=absent"]);
    space.until_reason("dv/data", "Deleted");
    assert_eq!(node.holds().await, (0, 0));
    // Wanted again, it is another one; and what is deleted then is that.
    space.kubectl(&["annotate", "dv/data", "drumlin.dev/state-"]);
    space.until_ready("dv/data");
    assert_eq!(node.holds().await, (1, 0));
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    assert_eq!(node.holds().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finalizer_that_others_have_written_goes_all_the_same() {
    let cluster = Cluster::of_the_lab();
    let (node, space) = (Node::start(&cluster).await, cluster.namespace());
    // As a manifest has it that was read from a server.
    let read = node.volume("data", "32Mi", "deletionPolicy: Delete");
    let read = read.replace("name: data", "name: data, finalizers: [drumlin.dev/agent]");
    space.apply(&read);
    space.until_ready("dv/data");
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    assert_eq!(node.holds().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_mount_needs_the_agents_consent() {
    let cluster = Cluster::of_the_lab();
    let (mut node, space) = (Node::start(&cluster).await, cluster.namespace());
    let target = node.agent.path("mounted");
    let mount = format!(
        "deletionPolicy: Delete\n  mount: {{path: {}}}",
        target.display()
    );
    space.apply(&node.volume("data", "32Mi", &mount));
    let denied = space.until_reason("dv/data", "HostMountDenied");
    assert!(condition(&denied, "Stalled").is_some());
    assert!(!target.exists());
    let below = |root: &std::path::Path| Options {
        arguments: vec![
            "--allow-host-mounts".to_owned(),
            format!("--mount-roots=/srv,{}", root.display()),
        ],
        ..Options::default()
    };
    // Not every directory is one of theirs.
    node.restart_with(&cluster, below(&node.agent.path("theirs")))
        .await;
    let told = |now: &serde_json::Value| {
        let ready = condition(now, "Ready");
        ready.is_some_and(|ready| ready["message"].to_string().contains("--mount-roots"))
    };
    space.until("dv/data", told);
    assert!(!target.exists());
    node.restart_with(&cluster, below(node.agent.scratch.path()))
        .await;
    let mounted = space.until_ready("dv/data");
    assert_eq!(
        mounted["status"]["mountPath"],
        target.to_string_lossy().as_ref()
    );
    std::fs::write(target.join("file"), b"kept").unwrap();
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    assert!(!target.exists());
    assert_eq!(node.holds().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_deleted_destroys_nothing() {
    let cluster = Cluster::own();
    let (node, space) = (Node::start(&cluster).await, cluster.namespace());
    space.apply(&node.volume("data", "32Mi", "deletionPolicy: Delete"));
    space.until_ready("dv/data");
    cluster.kubectl(&["delete", "crd", "volumes.drumlin.dev", "--timeout=60s"]);
    assert_eq!(node.holds().await, (1, 0));
}
