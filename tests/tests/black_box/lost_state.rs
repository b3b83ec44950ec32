//! The state directory is lost, the data and the manifests are not.

use std::fs;

use drumlin_tests::{
    agent::{Options, eventually},
    storage::Scratch,
};
use serde_json::Value;

use crate::{
    helpers::{get, put},
    host::{Host, absent, group, object, small, volume},
};

impl Host {
    /// Starts the agent again without what the reconciler knew.
    pub(crate) async fn lose_state(&mut self) {
        self.lose_state_and_die(None).await;
    }

    /// The same; with a fail point, it is killed there.
    async fn lose_state_and_die(&mut self, point: Option<&str>) {
        self.agent.kill();
        fs::remove_dir_all(self.agent.path("state/reconciler")).unwrap();
        self.restart(point).await;
    }

    /// Restores this snapshot of `a` and the member `b` of the group snapshot, with what they show.
    pub(crate) async fn restores_each_moment(&self, snapshot: &str) {
        let mount = format!("mount: {{path: {}}}", self.path("one"));
        let one = format!("source: {{snapshotName: {snapshot}}}\n{mount}");
        let two = "source: {groupSnapshot: {name: s, member: b}}";
        self.write(
            "r.yaml",
            &[volume("one", "16Mi", &one), volume("two", "16Mi", two)],
        );
        self.until("two", &["True"]).await;
        self.until("one", &["True"]).await;
        assert_eq!(get(&self.path("one"), "file"), b"before");
    }

    fn mounted(&self, name: &str) -> String {
        volume(
            name,
            "16Mi",
            &format!("mount: {{path: {}}}", self.path(name)),
        )
    }
}

/// What an object's status says of these fields.
fn told(host: &Host, (kind, name): (&str, &str), fields: &[&str]) -> Vec<Value> {
    let status = &host.object(kind, name)["status"];
    fields.iter().map(|field| status[field].clone()).collect()
}

pub(crate) fn snapshot(name: &str, of: &str) -> String {
    let spec = format!("source: {{volumeName: {of}}}");
    object("Snapshot", name, "", &spec)
}

const ALL: [(&str, &str, &[&str]); 5] = [
    ("Volume", "a", &["volumeHandle", "csiName", "capacity"]),
    ("Volume", "b", &["volumeHandle", "csiName", "capacity"]),
    ("VolumeGroup", "g", &["groupHandle", "csiName", "members"]),
    (
        "Snapshot",
        "before-upgrade",
        &[
            "snapshotHandle",
            "creationTime",
            "sourceVolumeHandle",
            "restoreSize",
        ],
    ),
    (
        "GroupSnapshot",
        "s",
        &[
            "groupSnapshotHandle",
            "creationTime",
            "members",
            "memberCount",
        ],
    ),
];

#[tokio::test]
async fn files_find_what_they_had_byte_for_byte_and_no_moment_is_taken_anew() {
    let mut host = Host::start().await;
    host.write("v.yaml", &[host.mounted("a"), small("b"), small("c")]);
    host.write("g.yaml", &[group("g", "b c")]);
    host.until("g", &["True", "2 of 2"]).await;
    host.until("a", &["True"]).await;
    put(&host.path("a"), "file", b"before");
    host.write(
        "s.yaml",
        &[
            snapshot("before-upgrade", "a"),
            object("GroupSnapshot", "s", "", "groupName: g"),
        ],
    );
    host.until("before-upgrade", &["True"]).await;
    host.until("s", &["True"]).await;
    put(&host.path("a"), "file", b"after");
    let had: Vec<Vec<Value>> = ALL
        .iter()
        .map(|(kind, name, fields)| told(&host, (kind, name), fields))
        .collect();
    let counts = host.counts().await;
    host.lose_state().await;
    for (_, name, _) in ALL {
        host.until(name, &["True"]).await;
    }
    for ((kind, name, fields), had) in ALL.iter().zip(had) {
        assert_eq!(told(&host, (kind, name), fields), had, "{kind} {name}");
    }
    assert_eq!(host.counts().await, counts);
    assert_eq!(get(&host.path("a"), "file"), b"after");
    host.restores_each_moment("before-upgrade").await;
}

#[tokio::test]
async fn what_has_grown_or_lost_its_source_since_is_found_too() {
    let mut host = Host::start().await;
    host.write("v.yaml", &[host.mounted("a")]);
    host.until("a", &["True"]).await;
    put(&host.path("a"), "file", b"bytes");
    let gone = object(
        "Snapshot",
        "s",
        "",
        "source: {volumeName: a}, deletionPolicy: Delete",
    );
    host.write("s.yaml", &[gone.clone()]);
    host.until("s", &["True"]).await;
    let copy = format!(
        "source: {{snapshotName: s}}\nmount: {{path: {}}}",
        host.path("copy")
    );
    host.write("c.yaml", &[volume("copy", "32Mi", &copy)]);
    host.until("copy", &["True"]).await;
    put(&host.path("copy"), "file", b"newer");
    host.write("s.yaml", &[absent(&gone)]);
    host.until("s", &["Deleted"]).await;
    host.write("c.yaml", &[volume("copy", "48Mi", &copy)]);
    host.until("copy", &["48Mi"]).await;
    host.lose_state().await;
    host.until("copy", &["True", "48Mi"]).await;
    assert_eq!(get(&host.path("copy"), "file"), b"newer");
    assert_eq!(host.counts().await, (2, 0));
}

#[tokio::test]
async fn a_tombstone_destroys_what_nothing_is_known_of_any_more() {
    let mut host = Host::start().await;
    let gone = object(
        "Snapshot",
        "s",
        "",
        "source: {volumeName: a}, deletionPolicy: Delete",
    );
    host.write("v.yaml", &[small("a"), gone.clone()]);
    host.until("s", &["True"]).await;
    host.agent.kill();
    host.write("v.yaml", &[absent(&small("a")), absent(&gone)]);
    host.lose_state().await;
    host.until("a", &["Deleted"]).await;
    host.until("s", &["Deleted"]).await;
    assert_eq!(host.counts().await, (0, 0));
}

#[tokio::test]
async fn a_volume_that_was_released_is_found_and_a_released_moment_is_not_taken_for_a_new_one() {
    let mut host = Host::start().await;
    let kept = object(
        "Snapshot",
        "s",
        "",
        "source: {volumeName: a}, deletionPolicy: Retain",
    );
    host.write("v.yaml", &[host.mounted("a")]);
    host.write("s.yaml", &[kept.clone()]);
    host.until("s", &["True"]).await;
    let handles = |host: &Host| {
        (
            told(host, ("Volume", "a"), &["volumeHandle"]),
            told(host, ("Snapshot", "s"), &["snapshotHandle"]),
        )
    };
    let had = handles(&host);
    host.write("s.yaml", &[absent(&kept)]);
    host.until("s", &["Released"]).await;
    host.write("v.yaml", &[absent(&host.mounted("a"))]);
    host.until("a", &["Released"]).await;
    host.write("v.yaml", &[small("other")]);
    host.write("s.yaml", &[small("another")]);
    eventually(|| host.find("Snapshot", "s"), Option::is_none).await;
    host.lose_state().await;
    host.write("v.yaml", &[host.mounted("a"), small("other")]);
    host.until("a", &["True"]).await;
    host.write("s.yaml", &[kept, small("another")]);
    host.until("s", &["True"]).await;
    let has = handles(&host);
    assert_eq!(has.0, had.0);
    assert_ne!(has.1, had.1);
    assert_eq!(host.counts().await.1, 2);
}

#[tokio::test]
async fn killed_while_it_finds_what_there_was_it_finds_it_all_the_same() {
    for point in ["state-lost.recorded", "set-owner.written", "owner.set"] {
        let mut host = Host::start().await;
        let taken = snapshot("s", "a");
        host.write("v.yaml", &[small("a"), taken.clone()]);
        host.until("s", &["True"]).await;
        let had = told(&host, ("Snapshot", "s"), &["snapshotHandle"]);
        host.lose_state_and_die(Some(point)).await;
        host.agent.wait_until_killed().await;
        host.restart(None).await;
        host.until("a", &["True"]).await;
        host.until("s", &["True"]).await;
        let has = told(&host, ("Snapshot", "s"), &["snapshotHandle"]);
        assert_eq!(has, had, "{point}");
        assert_eq!(host.counts().await, (1, 1), "{point}");
        // Whose it is has been told: with the state lost again it is found again.
        host.lose_state().await;
        host.until("s", &["True"]).await;
        assert_eq!(told(&host, ("Snapshot", "s"), &["snapshotHandle"]), had);
    }
}

#[tokio::test]
async fn a_volume_whose_class_is_away_meanwhile_is_found_when_it_is_back() {
    let scratch = Scratch::new();
    let disk = scratch.directory("disk");
    let options = Options {
        config: Some(format!(
            "classes:\n- {{name: default, directory: {{path: {}}}}}\n",
            disk.display()
        )),
        ..Options::default()
    };
    let mut host = Host::over(scratch, options).await;
    let released = absent(&volume("v", "16Mi", ""));
    host.write("v.yaml", &[volume("v", "16Mi", "")]);
    host.until("v", &["True"]).await;
    let had = told(&host, ("Volume", "v"), &["volumeHandle"]);
    host.write("v.yaml", &[released]);
    host.until("v", &["Released"]).await;
    host.agent.kill();
    let away = disk.with_extension("away");
    fs::rename(&disk, &away).unwrap();
    host.write("v.yaml", &[volume("v", "32Mi", "")]);
    host.lose_state().await;
    host.until("v", &["False", "Unavailable"]).await;
    fs::rename(&away, &disk).unwrap();
    host.until("v", &["True", "32Mi"]).await;
    assert_eq!(told(&host, ("Volume", "v"), &["volumeHandle"]), had);
}
