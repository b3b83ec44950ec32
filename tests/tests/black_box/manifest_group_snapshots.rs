//! Snapshots of groups that manifests ask for: taken once, of whom it was decided; restored; deleted in any order.

use std::fs;

use drumlin_proto::csi::v1::{ListSnapshotsRequest, Snapshot as Listed, VolumeGroupSnapshot};
use drumlin_tests::{
    agent::eventually,
    requests::{create_group, delete_group, delete_group_snapshot},
};
use serde_json::{Value, json};

use crate::{
    helpers::{get, ok, put},
    host::{Host, absent, group, object, small, volume},
};

/// A snapshot of group `g`.
fn snapshot(name: &str) -> String {
    object("GroupSnapshot", name, "", "groupName: g")
}

/// A volume made from a member of group snapshot `s`.
fn restored(name: &str, member: &str, more: &str) -> String {
    let source = format!("source: {{groupSnapshot: {{name: s, member: {member}}}}}");
    volume(
        name,
        "16Mi",
        &format!("{source}\ndeletionPolicy: Delete\n{more}"),
    )
}

impl Host {
    /// A host with the volumes `a` and `b` in group `g`.
    async fn with_a_group() -> Self {
        let host = Self::start().await;
        host.write("v.yaml", &[small("a"), small("b")]);
        host.write("g.yaml", &[group("g", "a b")]);
        host.until("g", &["True", "2 of 2"]).await;
        host
    }

    async fn snapshots(&self) -> Vec<Listed> {
        let mut client = self.agent.controller();
        let listed = client.list_snapshots(ListSnapshotsRequest::default()).await;
        let entries = ok(listed).entries.into_iter();
        entries.filter_map(|entry| entry.snapshot).collect()
    }

    /// Checks that there is one group snapshot, of `a` and `b`, and that its record says so.
    async fn has_one_snapshot_of_both(&self) {
        self.until("s", &["True", "SnapshotReady", "2 members of g"])
            .await;
        let status = self.object("GroupSnapshot", "s")["status"].clone();
        let listed = self.snapshots().await;
        assert_eq!(listed.len(), 2, "{listed:#?}");
        let names: Vec<&Value> = members(&status).map(|member| &member["name"]).collect();
        assert_eq!(names, ["a", "b"]);
        for member in members(&status) {
            let is_it = |found: &&Listed| member["snapshotHandle"] == found.snapshot_id.as_str();
            let found = listed.iter().find(is_it).unwrap();
            assert_eq!(member["volumeHandle"], found.source_volume_id.as_str());
            assert_eq!(
                status["groupSnapshotHandle"],
                found.group_snapshot_id.as_str()
            );
        }
    }

    async fn has_nothing(&self) {
        assert_eq!(self.counts().await, (0, 0));
        assert_eq!(self.groups().await, []);
        assert_eq!(self.agent.status().1, 0);
    }

    /// Asks for a snapshot, has the agent killed at a point, changes manifests meanwhile, and starts it again.
    async fn killed_at(point: &str, meanwhile: impl FnOnce(&Self)) -> Self {
        let mut host = Self::with_a_group().await;
        host.restart(Some(point)).await;
        host.write("s.yaml", &[snapshot("s")]);
        host.agent.wait_until_killed().await;
        meanwhile(&host);
        host.restart(None).await;
        host
    }
}

fn members(status: &Value) -> impl Iterator<Item = &Value> {
    status["members"].as_array().into_iter().flatten()
}

#[tokio::test]
async fn a_group_snapshot_waits_for_its_group_and_is_taken_once() {
    let host = Host::start().await;
    host.write("s.yaml", &[snapshot("s")]);
    let missing = [
        "False",
        "DependencyNotFound",
        "group g, which does not exist",
    ];
    host.until("s", &missing).await;
    host.write("g.yaml", &[group("g", "a b")]);
    host.until("s", &["False", "DependencyNotFound", "is not ready"])
        .await;
    host.write("v.yaml", &[small("a"), small("b")]);
    host.has_one_snapshot_of_both().await;
    let line = host.until("s", &["GroupSnapshot", "32Mi"]).await;
    let taken = host.object("GroupSnapshot", "s")["status"]["creationTime"].clone();
    assert!(line.contains(taken.as_str().unwrap()), "{line}");
    let last = |group: &Value| group["status"]["lastSnapshotTime"] == taken;
    eventually(|| host.object("VolumeGroup", "g"), last).await;
    let state = host.agent.path("state");
    let wide = [
        "status",
        "-o",
        "wide",
        "--state-dir",
        &state.to_string_lossy(),
    ];
    let wide = String::from_utf8(host.agent.command(&wide).stdout).unwrap();
    let columns = |name: &str| {
        let mut lines = wide.lines().map(|line| line.split_whitespace());
        let mut line = lines
            .find(|line| line.clone().nth(2) == Some(name))
            .unwrap();
        line.nth(7).unwrap().to_owned()
    };
    assert_eq!(
        ["a", "b", "g", "s"].map(columns),
        ["g", "g", "-", "g"],
        "{wide}"
    );
    // What becomes of the group then is nothing to it.
    host.write("g.yaml", &[group("g", "a")]);
    host.until("g", &["True", "1 of 1"]).await;
    host.write("g.yaml", &[absent(&group("g", "a"))]);
    host.until("g", &["Deleted"]).await;
    host.has_one_snapshot_of_both().await;
    assert_eq!(host.agent.status().1, 0);
}

#[tokio::test]
async fn a_member_that_comes_in_the_same_breath_is_in_the_snapshot() {
    let host = Host::start().await;
    let labelled =
        |name: &str| small(name).replace("metadata:\n", "metadata:\n  labels: {app: pg}\n");
    let g = object("VolumeGroup", "g", "", "selector: {matchLabels: {app: pg}}");
    let before = [labelled("a"), g];
    host.write("a.yaml", &before);
    host.until("g", &["True", "1 of 1"]).await;
    // Its group is ready, and does not know of it yet.
    host.write(
        "a.yaml",
        &[&before[..], &[snapshot("s"), labelled("b")]].concat(),
    );
    host.has_one_snapshot_of_both().await;
}

#[tokio::test]
async fn killed_after_the_guard_it_goes_on() {
    let host = Host::killed_at("ingest.finalizer-added", |host| {
        assert!(host.object("GroupSnapshot", "s")["status"]["members"].is_null());
    })
    .await;
    host.has_one_snapshot_of_both().await;
}

#[tokio::test]
async fn killed_after_the_members_are_fixed_it_asks_for_them() {
    let host = Host::killed_at("group-snapshot.create.intended", |host| {
        let status = &host.object("GroupSnapshot", "s")["status"];
        assert_eq!(members(status).count(), 2);
        assert!(status["groupSnapshotHandle"].is_null());
    })
    .await;
    host.has_one_snapshot_of_both().await;
}

#[tokio::test]
async fn killed_before_the_reply_it_asks_again_and_there_is_one() {
    // In the agent: before anything is there, and when all is.
    for point in [
        "create-group-snapshot.begun",
        "create-group-snapshot.complete",
    ] {
        let host = Host::killed_at(point, |_| {}).await;
        host.has_one_snapshot_of_both().await;
    }
}

#[tokio::test]
async fn killed_after_the_reply_it_asks_again_and_finds_what_was_made() {
    let host = Host::killed_at("group-snapshot.create.called", |host| {
        assert!(host.object("GroupSnapshot", "s")["status"]["groupSnapshotHandle"].is_null());
    })
    .await;
    host.has_one_snapshot_of_both().await;
}

#[tokio::test]
async fn a_deletion_that_is_asked_for_while_it_is_made_leaves_nothing() {
    for point in [
        "group-snapshot.create.intended",
        "group-snapshot.create.called",
    ] {
        let host = Host::killed_at(point, |host| {
            host.write("s.yaml", &[absent(&snapshot("s"))]);
        })
        .await;
        host.until("s", &["Deleted"]).await;
        assert_eq!(host.snapshots().await, []);
    }
}

#[tokio::test]
async fn killed_after_the_deletion_it_deletes_again() {
    let mut host = Host::with_a_group().await;
    host.write("s.yaml", &[snapshot("s")]);
    host.has_one_snapshot_of_both().await;
    host.restart(Some("group-snapshot.delete.called")).await;
    host.write("s.yaml", &[absent(&snapshot("s"))]);
    host.agent.wait_until_killed().await;
    let handle = &host.object("GroupSnapshot", "s")["status"]["groupSnapshotHandle"];
    assert!(handle.is_string(), "the guard is still there");
    host.restart(None).await;
    host.until("s", &["Deleted"]).await;
    assert_eq!(host.snapshots().await, []);
    fs::remove_file(host.manifests.join("s.yaml")).unwrap();
    eventually(|| host.agent.status().0, |table| !table.contains(" s ")).await;
}

#[tokio::test]
async fn the_members_that_were_fixed_are_taken_whatever_the_group_has_by_then() {
    let host = Host::killed_at("group-snapshot.create.intended", |host| {
        host.write("g.yaml", &[group("g", "a")]);
    })
    .await;
    host.until("g", &["True", "1 of 1"]).await;
    host.has_one_snapshot_of_both().await;
}

#[tokio::test]
async fn a_member_is_restored_with_its_bytes_if_it_has_room() {
    let host = Host::start().await;
    let at = |name: &str| format!("mount: {{path: {}}}", host.path(name));
    let mounted = |name: &str| volume(name, "16Mi", &at(name));
    host.write("v.yaml", &[mounted("a"), mounted("b")]);
    host.write("g.yaml", &[group("g", "a b")]);
    host.until("g", &["True", "2 of 2"]).await;
    for name in ["a", "b"] {
        // A member need not be mounted to be one.
        host.until(name, &["True", "16Mi at"]).await;
        put(&host.path(name), "file", format!("then {name}").as_bytes());
    }
    // Without reflinks the agent refuses to hold writers for a whole copy.
    let unmounted = ["a", "b"].map(|name| volume(name, "16Mi", ""));
    host.write("v.yaml", &unmounted);
    for name in ["a", "b"] {
        host.until(name, &["True", "not mounted"]).await;
    }
    host.write(
        "r.yaml",
        &["a", "b"].map(|name| restored(&format!("r{name}"), name, &at(&format!("r{name}")))),
    );
    host.until("ra", &["DependencyNotFound", "group snapshot s"])
        .await;
    host.write("s.yaml", &[snapshot("s")]);
    for name in ["a", "b"] {
        host.until(&format!("r{name}"), &["True", "16Mi"]).await;
        let found = get(&host.path(&format!("r{name}")), "file");
        assert_eq!(found, format!("then {name}").as_bytes());
    }
    let small = restored("small", "a", "").replace("16Mi", "8Mi");
    host.write("x.yaml", &[small, restored("nobody", "c", "")]);
    let reason = ["False", "InvalidArgument", "spec.capacity", "needs 16Mi"];
    host.until("small", &reason).await;
    host.until(
        "nobody",
        &["False", "InvalidArgument", "no member is named c"],
    )
    .await;
    // By the id of its volume, too: a member may have no name.
    let handle = host.handle("b");
    host.write("x.yaml", &[restored("byid", &handle, "")]);
    host.until("byid", &["True"]).await;
    assert_eq!(host.counts().await, (5, 2));
}

#[tokio::test]
async fn everything_goes_in_whatever_order_it_is_destroyed() {
    let orders: [&[usize]; 3] = [&[0, 1, 2, 3, 4], &[4, 3, 2, 1, 0], &[2, 0, 4, 1, 3]];
    for order in orders {
        let host = Host::with_a_group().await;
        host.write("s.yaml", &[snapshot("s")]);
        host.write("r.yaml", &[restored("r", "b", "")]);
        host.until("r", &["True"]).await;
        let all = [
            small("a"),
            small("b"),
            group("g", "a b"),
            snapshot("s"),
            restored("r", "b", ""),
        ];
        let files = ["v.yaml", "g.yaml", "s.yaml", "r.yaml"];
        let all: Vec<String> = order.iter().map(|&index| absent(&all[index])).collect();
        for file in files {
            host.write(file, &[]);
        }
        host.write("all.yaml", &all);
        for name in ["a", "b", "g", "s", "r"] {
            host.until(name, &["Deleted"]).await;
        }
        host.has_nothing().await;
    }
}

#[tokio::test]
async fn a_group_snapshot_stays_while_a_volume_is_being_made_from_it() {
    let mut host = Host::with_a_group().await;
    host.write("s.yaml", &[snapshot("s")]);
    host.has_one_snapshot_of_both().await;
    host.restart(Some("volume.create.intended")).await;
    host.write("r.yaml", &[restored("r", "a", "")]);
    host.agent.wait_until_killed().await;
    let paused = restored("r", "a", "").replace(
        "metadata:\n",
        "metadata:\n  annotations: {drumlin.dev/paused: \"true\"}\n",
    );
    host.write("r.yaml", &[paused]);
    host.write("s.yaml", &[absent(&snapshot("s"))]);
    // A start goes on before it has read the manifests; this is how it would have ended after it has.
    let mut record = host.object("Volume", "r");
    assert!(record["drumlin"]["create"].is_object());
    record["metadata"]["annotations"] = json!({"drumlin.dev/paused": "true"});
    let path = "state/reconciler/objects/Volume/default/r.json";
    fs::write(host.agent.path(path), record.to_string()).unwrap();
    host.restart(None).await;
    let blocked = [
        "DeletionBlocked",
        "Volume/default/r is being created from it",
    ];
    host.until("s", &blocked).await;
    assert_eq!(host.snapshots().await.len(), 2);
    host.write("r.yaml", &[restored("r", "a", "")]);
    host.until("r", &["True"]).await;
    host.until("s", &["Deleted"]).await;
    assert_eq!(host.snapshots().await, []);
}

#[tokio::test]
async fn one_that_is_lost_is_told_and_never_taken_again_by_itself() {
    let mut host = Host::with_a_group().await;
    host.write("s.yaml", &[snapshot("s")]);
    host.has_one_snapshot_of_both().await;
    let snapshots = host.snapshots().await;
    let request = delete_group_snapshot(&VolumeGroupSnapshot {
        group_snapshot_id: snapshots[0].group_snapshot_id.clone(),
        snapshots,
        ..VolumeGroupSnapshot::default()
    });
    let mut client = host.agent.group_controller();
    ok(client.delete_volume_group_snapshot(request).await);
    host.restart(None).await;
    host.until("s", &["False", "SnapshotLost"]).await;
    assert_eq!(host.snapshots().await, []);
    host.write("s.yaml", &[absent(&snapshot("s"))]);
    host.until("s", &["Deleted"]).await;
    // The same name again is another moment.
    host.write("s.yaml", &[snapshot("s")]);
    host.has_one_snapshot_of_both().await;
}

#[tokio::test]
async fn one_that_is_retained_stays_and_one_of_another_group_is_another() {
    let host = Host::with_a_group().await;
    let kept = object(
        "GroupSnapshot",
        "s",
        "",
        "groupName: g, deletionPolicy: Retain",
    );
    host.write("s.yaml", &[kept.clone()]);
    host.has_one_snapshot_of_both().await;
    let other = kept.replace("groupName: g", "groupName: other");
    host.write("s.yaml", &[other]);
    let wrong = "spec.groupName: cannot be changed";
    let told = |table: &String| table.contains("INVALID s.yaml:5:") && table.contains(wrong);
    eventually(|| host.agent.status().0, told).await;
    host.write("s.yaml", &[absent(&kept)]);
    host.until("s", &["Released"]).await;
    assert_eq!(host.snapshots().await.len(), 2);
    host.write("s.yaml", &[kept]);
    host.has_one_snapshot_of_both().await;
}

#[tokio::test]
async fn what_was_released_is_deleted_when_that_is_asked_for_later() {
    let host = Host::start().await;
    let retained =
        |manifest: &str| manifest.replace("deletionPolicy: Delete", "deletionPolicy: Retain");
    let policy = "deletionPolicy: Delete";
    let all = [
        small("b"),
        small("a"),
        object(
            "VolumeGroup",
            "g",
            "",
            &format!("members: [{{kind: Volume, name: a}}], {policy}"),
        ),
        object(
            "Snapshot",
            "one",
            "",
            &format!("source: {{volumeName: a}}, {policy}"),
        ),
        object("GroupSnapshot", "s", "", &format!("groupName: g, {policy}")),
    ];
    let names = ["b", "a", "g", "one", "s"];
    let kept = all.each_ref().map(|manifest| retained(manifest));
    host.write("all.yaml", &kept);
    for name in names {
        host.until(name, &["True"]).await;
    }
    host.write(
        "all.yaml",
        &kept.each_ref().map(|manifest| absent(manifest)),
    );
    for name in names {
        host.until(name, &["Released"]).await;
    }
    assert_eq!(host.counts().await, (2, 2));
    assert_eq!(host.groups().await.len(), 1);
    // One of them cannot go yet.
    let request = create_group("theirs", vec![host.handle("b")]);
    let theirs = ok(host.agent.groups().create_volume_group(request).await);
    host.write("all.yaml", &all.each_ref().map(|manifest| absent(manifest)));
    for name in &names[1..] {
        host.until(name, &["Deleted"]).await;
    }
    host.until("b", &["DeletionBlocked", "is in group"]).await;
    let request = delete_group(&theirs.volume_group.unwrap().volume_group_id);
    ok(host.agent.groups().delete_volume_group(request).await);
    // It would be tried again by itself, but not at once.
    let now = "absent, drumlin.dev/reconcile-at: now";
    let at_once = all
        .each_ref()
        .map(|manifest| absent(manifest).replace("absent", now));
    host.write("all.yaml", &at_once);
    host.until("b", &["Deleted"]).await;
    host.has_nothing().await;
}
