//! Schedules on a server: the agent that holds the target makes their snapshots as objects. A minute of theirs takes a
//! second here.

use std::{
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use drumlin_tests::{
    agent::{Options, PATIENCE, eventually, write},
    cluster::{Cluster, Namespace},
    sources,
    storage::Scratch,
};
use serde_json::Value;

use crate::node::{Node, manifest};

/// The clock runs so many times as fast.
const FACTOR: &str = "60";

fn timed(scratch: &Scratch, point: Option<&str>) -> Options {
    let clock = scratch.path().join("clock");
    if !clock.exists() {
        write(&clock, &now());
    }
    let shown = |path: &Path| path.to_string_lossy().into_owned();
    let environment = [
        ("DRUMLIN_CLOCK".to_owned(), shown(&clock)),
        ("DRUMLIN_TIME_LAPSE".to_owned(), FACTOR.to_owned()),
    ];
    let options = Options {
        environment: environment.into(),
        ..Options::default()
    };
    options.perhaps_killed_at(point)
}

fn now() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs().to_string()
}

fn schedule(target: &str, more: &str) -> String {
    let spec =
        format!("target: {{{target}}}\n  schedule: '* * * * *'\n  jitterSeconds: 0\n  {more}");
    manifest("SnapshotSchedule", "s", &spec)
}

/// The snapshots of the schedule.
fn children(space: &Namespace<'_>, kind: &str) -> Vec<Value> {
    let label = "drumlin.dev/schedule=s";
    let listed = space.kubectl(&["get", kind, "-l", label, "-o", "json"]);
    let mut listed: Value = serde_json::from_str(&listed).unwrap();
    let items = listed["items"].take();
    serde_json::from_value(items).unwrap()
}

/// Waits until this many snapshots have been taken since now.
async fn taken(space: &Namespace<'_>, count: usize) {
    let mut names = std::collections::BTreeSet::new();
    let seen = || {
        let schedule = space.get("dsched/s");
        let name = schedule["status"]["lastSnapshotName"].as_str();
        names.extend(name.map(str::to_owned));
        names.len()
    };
    eventually(seen, |len| *len > count).await;
}

async fn until_it_holds(node: &Node, wanted: (usize, usize)) {
    let deadline = Instant::now() + PATIENCE;
    while node.holds().await != wanted {
        assert!(Instant::now() < deadline, "{:?}", node.holds().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_that_holds_the_target_makes_and_deletes_the_snapshots() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    let node = Node::with(&cluster, timed(&scratch, None)).await;
    let other = Node::with(&cluster, timed(&scratch, None)).await;
    let space = cluster.namespace();
    let own = "volumeMode: Block\n  deletionPolicy: Delete";
    space.apply(&node.volume("data", "8Mi", own));
    space.apply(&schedule("volumeName: data", "retention: {keepLast: 2}"));
    let ready = space.until_ready("dsched/s");
    assert_eq!(ready["spec"]["nodeName"], node.name.as_str());
    taken(&space, 4).await;
    let is_kept = |schedule: &Value| schedule["status"]["kept"] == 2;
    space.until("dsched/s", is_kept);
    space.kubectl(&[
        "patch",
        "dsched/s",
        "--type=merge",
        "-p",
        r#"{"spec": {"suspend": true}}"#,
    ]);
    space.until("dsched/s", |schedule| {
        schedule["status"]["nextTime"].is_null()
    });
    // With the one that was just taken.
    let found = || children(&space, "dsnap");
    let is_ready = |found: &Vec<Value>| {
        let ready = |one: &Value| one["status"]["readyToUse"] == true;
        (2..=3).contains(&found.len()) && found.iter().all(ready)
    };
    let found = eventually(found, is_ready).await;
    for child in &found {
        assert_eq!(child["spec"]["nodeName"], node.name.as_str());
        assert_eq!(child["spec"]["source"]["volumeName"], "data");
        assert!(child["metadata"]["ownerReferences"].is_null());
        let slot = child["metadata"]["name"].as_str().unwrap();
        assert!(slot.starts_with("s-2") && slot.ends_with("00z"), "{slot}");
    }
    until_it_holds(&node, (1, found.len())).await;
    assert_eq!(other.holds().await, (0, 0));
    let table = space.kubectl(&["get", "dsched"]);
    for column in ["SCHEDULE", "SUSPEND", "KEPT", "LAST", "NEXT", "REASON"] {
        assert!(table.contains(column), "{table}");
    }
    // The end of the schedule leaves them; a person deletes one.
    space.kubectl(&["delete", "dsched/s", "--timeout=20s"]);
    assert_eq!(children(&space, "dsnap").len(), found.len());
    let name = found[0]["metadata"]["name"].as_str().unwrap();
    space.kubectl(&["delete", "dsnap", name, "--timeout=20s"]);
    assert_eq!(node.holds().await, (1, found.len() - 1));
    space.kubectl(&["delete", "dsnap,dv", "--all", "--timeout=60s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_of_a_group_is_killed_between_any_two_steps_and_has_one_snapshot_a_slot() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    let mut node = Node::with(&cluster, timed(&scratch, None)).await;
    let space = cluster.namespace();
    let own = "volumeMode: Block\n  deletionPolicy: Delete";
    space.apply(
        &[
            node.volume("data", "8Mi", own),
            manifest("VolumeGroup", "g", "members: [{kind: Volume, name: data}]"),
            schedule("groupName: g", "retention: {keepLast: 2}"),
        ]
        .concat(),
    );
    space.until_ready("dsched/s");
    let points = sources::reconciler_points();
    // The others need a manifest, or a run that fails: see the tests of directories.
    let skipped = ["schedule.ended", "schedule.run.failed"];
    let points = points
        .iter()
        .filter(|point| point.starts_with("schedule.") && !skipped.contains(&point.as_str()));
    for point in points {
        node.restart_with(&cluster, timed(&scratch, Some(point)))
            .await;
        node.agent.wait_until_killed().await;
        node.restart_with(&cluster, timed(&scratch, None)).await;
        taken(&space, 2).await;
    }
    let suspended = r#"{"spec": {"suspend": true}}"#;
    space.kubectl(&["patch", "dsched/s", "--type=merge", "-p", suspended]);
    space.until("dsched/s", |schedule| {
        schedule["status"]["nextTime"].is_null()
    });
    let found = || children(&space, "dgsnap");
    let is_ready = |found: &Vec<Value>| {
        found.len() <= 3 && found.iter().all(|one| one["status"]["readyToUse"] == true)
    };
    let found = eventually(found, is_ready).await;
    until_it_holds(&node, (1, found.len())).await;
    space.kubectl(&["delete", "dsched,dgsnap,dvg,dv", "--all", "--timeout=60s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_lost_its_state_goes_on_after_the_last_slot() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    let mut node = Node::with(&cluster, timed(&scratch, None)).await;
    let space = cluster.namespace();
    let own = "volumeMode: Block\n  deletionPolicy: Delete";
    space.apply(&node.volume("data", "8Mi", own));
    space.apply(&schedule("volumeName: data", "retention: {keepLast: 3}"));
    space.until("dsched/s", |schedule| schedule["status"]["kept"] == 3);
    node.agent.kill();
    std::fs::remove_dir_all(node.agent.path("state/reconciler")).unwrap();
    node.restart_with(&cluster, timed(&scratch, None)).await;
    taken(&space, 3).await;
    space.until("dsched/s", |schedule| schedule["status"]["kept"] == 3);
    let found = || children(&space, "dsnap").len();
    eventually(found, |count| (3..=4).contains(count)).await;
    space.kubectl(&["delete", "dsched,dsnap,dv", "--all", "--timeout=60s"]);
}
