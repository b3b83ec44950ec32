//! An agent that is killed between any two steps: what the server has ends where an uninterrupted run ends.

use drumlin_tests::{agent::Options, cluster::Cluster};

use crate::node::{Node, manifest, volume};

/// Between which steps it is killed while objects are made: those that only objects of a server have, and those of each kind.
const MADE: [&str; 17] = [
    "ingest.finalizer-added",
    "finalizer.added",
    "volume.create.intended",
    "volume.create.called",
    "volume.create.recorded",
    "group.create.intended",
    "group.create.called",
    "group.create.recorded",
    "group.members.intended",
    "group.members.called",
    "snapshot.create.intended",
    "snapshot.create.called",
    "snapshot.create.recorded",
    "group-snapshot.create.intended",
    "group-snapshot.create.called",
    "group-snapshot.create.recorded",
    "status.told",
];
/// And while they are taken down; fewer than those.
const TAKEN: [&str; 9] = [
    "volume.delete.called",
    "volume.destroyed",
    "group.emptied",
    "group.delete.called",
    "group.destroyed",
    "snapshot.delete.called",
    "snapshot.destroyed",
    "group-snapshot.destroyed",
    "status.let-go",
];

/// What is made and taken down.
const OBJECTS: [&str; 5] = [
    "dv/data",
    "dvg/pg",
    "dgsnap/moment",
    "dsnap/one",
    "dv/again",
];

#[tokio::test(flavor = "multi_thread")]
#[expect(
    clippy::print_stdout,
    reason = "the last line that a failed test shows is where it was"
)]
async fn killed_at_each_step_all_are_ready_and_then_all_are_gone() {
    let cluster = Cluster::of_the_lab();
    let mut node = Node::start(&cluster).await;
    // One life has a kill while its objects are made, and one while they are taken down.
    for (number, made) in MADE.into_iter().enumerate() {
        let taken = TAKEN.get(number);
        println!("killed at {made} and {taken:?}");
        let space = cluster.namespace();
        let delete = "volumeMode: Block\n  deletionPolicy: Delete";
        let copy = "capacity: 8Mi\n  volumeMode: Block\n  deletionPolicy: Delete\n  source: {snapshotName: one}";
        let all = [
            node.volume("data", "8Mi", delete),
            manifest("VolumeGroup", "pg", "members: [{kind: Volume, name: data}]"),
            manifest("GroupSnapshot", "moment", "groupName: pg"),
            manifest("Snapshot", "one", "source: {volumeName: data}"),
            volume("again", copy),
        ];
        node.restart_with(&cluster, Options::default().killed_at(made))
            .await;
        space.apply(&all.concat());
        node.agent.wait_until_killed().await;
        node.restart_with(&cluster, Options::default()).await;
        for object in OBJECTS {
            space.until_ready(object);
        }
        assert_eq!(node.holds().await, (2, 2), "{made}");
        if let Some(taken) = taken {
            node.restart_with(&cluster, Options::default().killed_at(taken))
                .await;
        }
        space.kubectl(&["delete", "dvg,dgsnap,dsnap,dv", "--all", "--wait=false"]);
        if taken.is_some() {
            node.agent.wait_until_killed().await;
            node.restart_with(&cluster, Options::default()).await;
        }
        for object in OBJECTS {
            space.until_gone(object);
        }
        assert_eq!(node.holds().await, (0, 0), "{made} and {taken:?}");
    }
}
