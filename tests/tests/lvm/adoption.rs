//! Disks that were moved here from another node.

use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use drumlin_proto::{
    csi::v1::{
        ControllerPublishVolumeRequest, CreateVolumeRequest, ListSnapshotsRequest,
        ListVolumesRequest,
    },
    volumegroup::CreateVolumeGroupRequest,
};
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE},
    requests::{create, create_group, delete, from_snapshot, mounted, raw, snapshot},
    storage::{Scratch, lvm},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tonic::Code;

use crate::helpers::{get, mount, ok, put, refused, unmount, volume};

/// The configuration of a class of this kind, with more words in it.
fn class(scratch: &Scratch, kind: &str, more: &str) -> String {
    let group = scratch.group().unwrap_or_else(|| {
        let group = scratch.volume_group(512);
        if kind == "thin" {
            lvm("lvcreate", &["-L", "900M", "-T", &format!("{group}/pool")]);
        }
        group
    });
    let pool = if kind == "thin" { ", pool: pool" } else { "" };
    format!(
        "attach: true\nclasses: [{{name: fast, {kind}: {{volumeGroup: {group}{pool}{more}}}}}]\n"
    )
}

async fn as_node(agent: &mut Agent, node: &str, kind: &str, more: &str) {
    let options = Options {
        config: Some(class(&agent.scratch, kind, more)),
        node: Some(node.to_owned()),
        ..Options::default()
    };
    agent.kill();
    agent.restart_with(options).await;
}

async fn start(kind: &str) -> Agent {
    let scratch = Scratch::new();
    let options = Options {
        config: Some(class(&scratch, kind, "")),
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

async fn attach(agent: &Agent, id: &str) {
    let request = ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: id.split('/').next().unwrap().to_owned(),
        volume_capability: Some(mounted("ext4")),
        ..ControllerPublishVolumeRequest::default()
    };
    ok(agent.controller().controller_publish_volume(request).await);
}

/// Ids of all volumes, with the nodes that each is published to.
async fn volumes(agent: &Agent) -> Vec<(String, Vec<String>)> {
    let list = ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    let entries = list.entries.into_iter().map(|entry| {
        let nodes = entry.status.map(|status| status.published_node_ids);
        (entry.volume.unwrap().volume_id, nodes.unwrap_or_default())
    });
    entries.collect()
}

/// Ids of the snapshots of a volume, or of all.
async fn snapshots(agent: &Agent, of: &str) -> Vec<String> {
    let request = ListSnapshotsRequest {
        source_volume_id: of.to_owned(),
        ..ListSnapshotsRequest::default()
    };
    let list = ok(agent.controller().list_snapshots(request).await);
    let entries = list.entries.into_iter();
    entries
        .map(|entry| entry.snapshot.unwrap().snapshot_id)
        .collect()
}

fn here(id: &str) -> String {
    id.replace("node-a", "node-b")
}

async fn disks_of_another_node_are_adopted(kind: &str) {
    let mut agent = start(kind).await;
    let capability = mounted("ext4");
    let id = volume(&agent, "v", 64, &capability).await;
    attach(&agent, &id).await;
    let at = mount(&agent, "v", &id, &capability).await;
    put(&at.1, "file", b"precious");
    let taken = ok(agent.controller().create_snapshot(snapshot("s", &id)).await);
    let taken = taken.snapshot.unwrap().snapshot_id;
    unmount(&agent, &id, &at).await;
    assert_eq!(
        volumes(&agent).await,
        [(id.clone(), vec!["node-a".to_owned()])]
    );
    let made = ok(agent
        .groups()
        .create_volume_group(group_of(vec![id.clone()]))
        .await);
    assert_eq!(made.volume_group.unwrap().volumes[0].volume_id, id);

    as_node(&mut agent, "node-b", kind, "").await;
    nothing_is_made_over_foreign_ones(&agent, &id).await;
    half_adopt(&agent, &id, &taken);
    for adopts in [", adoptNode: node-a", ", adoptNode: [node-x, node-a]", ""] {
        as_node(&mut agent, "node-b", kind, adopts).await;
        let of = here(&id);
        assert_eq!(volumes(&agent).await, [(of.clone(), vec![])]);
        assert_eq!(snapshots(&agent, &of).await, [here(&taken)]);
        assert_eq!(snapshots(&agent, &id).await, [""; 0]);
    }
    assert_eq!(
        agent.log().matches("of another node adopted").count(),
        1,
        "one is logged once"
    );
    the_calls_that_made_them_find_them(&agent, &here(&id), &here(&taken)).await;
    is_used_and_precious(&agent, "v", &here(&id)).await;
    let request = CreateVolumeRequest {
        volume_content_source: from_snapshot(&here(&taken)),
        ..create("restored", 64, &capability)
    };
    let restored = ok(agent.controller().create_volume(request).await);
    let restored = restored.volume.unwrap().volume_id;
    is_used_and_precious(&agent, "restored", &restored).await;
}

fn group_of(volume_ids: Vec<String>) -> CreateVolumeGroupRequest {
    create_group("g", volume_ids)
}

/// Not asked for, the disks are another node's, and nothing is made over them.
async fn nothing_is_made_over_foreign_ones(agent: &Agent, id: &str) {
    assert_eq!(volumes(agent).await, []);
    assert_eq!(snapshots(agent, "").await, [""; 0]);
    let again = create("v", 64, &mounted("ext4"));
    let message = refused(
        agent.controller().create_volume(again).await,
        Code::FailedPrecondition,
    );
    assert!(message.contains("adoptNode: node-a"), "{message}");
    let mine = group_of(Vec::new());
    let message = refused(
        agent.groups().create_volume_group(mine).await,
        Code::FailedPrecondition,
    );
    assert!(message.contains("adoptNode: node-a"), "{message}");
    assert_eq!(volumes(agent).await, []);
    ok(agent.controller().delete_volume(delete(&here(id))).await);
    let theirs = volume(agent, "mine", 16, &raw()).await;
    ok(agent.controller().delete_volume(delete(&theirs)).await);
}

/// Half of it was done when the machine went down: the snapshot says so, the volume does not.
fn half_adopt(agent: &Agent, id: &str, taken: &str) {
    let group = agent.scratch.group().unwrap();
    let key = taken.rsplit('/').next().unwrap();
    let change = [
        "--deltag",
        "drumlin.node=node-a",
        "--addtag",
        "drumlin.node=node-b",
        "--deltag",
        &format!("drumlin.l.of={id}"),
        "--addtag",
        &format!("drumlin.l.of={}", here(id)),
        &format!("{group}/dl-s-{key}"),
    ];
    lvm("lvchange", &change);
}

async fn the_calls_that_made_them_find_them(agent: &Agent, id: &str, taken: &str) {
    let mine = group_of(Vec::new());
    let found = ok(agent.groups().create_volume_group(mine).await);
    assert_eq!(found.volume_group.unwrap().volumes[0].volume_id, id);
    let again = create("v", 64, &mounted("ext4"));
    let found = ok(agent.controller().create_volume(again).await);
    assert_eq!(found.volume.unwrap().volume_id, id);
    let found = ok(agent.controller().create_snapshot(snapshot("s", id)).await);
    assert_eq!(found.snapshot.unwrap().snapshot_id, taken);
}

async fn is_used_and_precious(agent: &Agent, name: &str, id: &str) {
    attach(agent, id).await;
    let at = mount(agent, name, id, &mounted("ext4")).await;
    assert_eq!(get(&at.1, "file"), b"precious");
    unmount(agent, id, &at).await;
}

#[tokio::test]
async fn thin_volumes_and_snapshots_of_another_node_are_there_once_they_are_adopted() {
    disks_of_another_node_are_adopted("thin").await;
}

#[tokio::test]
async fn thick_volumes_and_snapshots_of_another_node_are_there_once_they_are_adopted() {
    disks_of_another_node_are_adopted("thick").await;
}

#[tokio::test]
async fn a_volume_whose_id_this_node_has_already_is_left_to_the_other() {
    let mut agent = start("thin").await;
    let group = agent.scratch.group().unwrap();
    let id = volume(&agent, "v", 16, &raw()).await;
    let key = id.rsplit('/').next().unwrap().to_owned();
    lvm("lvrename", &[&group, &format!("dl-v-{key}"), "theirs"]);
    as_node(&mut agent, "node-b", "thin", "").await;
    let mine = volume(&agent, "v", 32, &raw()).await;
    as_node(&mut agent, "node-b", "thin", ", adoptNode: node-a").await;
    assert_eq!(volumes(&agent).await, [(mine, vec![])]);
    assert!(agent.log().contains("not adopted"), "{}", agent.log());
}

#[tokio::test]
async fn what_was_half_made_on_the_other_node_is_ended_here() {
    let mut agent = start("thin").await;
    let group = agent.scratch.group().unwrap();
    let id = volume(&agent, "v", 16, &raw()).await;
    let key = id.rsplit('/').next().unwrap();
    let path = format!("{group}/dl-v-{key}");
    lvm("lvchange", &["--addtag", "drumlin.incomplete=yes", &path]);
    as_node(&mut agent, "node-b", "thin", ", adoptNode: node-a").await;
    assert_eq!(volumes(&agent).await, []);
    assert!(!lvm("lvs", &["--noheadings", "-o", "name", &group]).contains(key));
    volume(&agent, "v", 16, &raw()).await;
}

/// Kills the first `lvm` that reads commands, so long after it was seen; says whether it met one.
fn kill_lvm(after: Duration) -> thread::JoinHandle<bool> {
    // What waits for the agent before has nothing to do with it.
    let before = running_lvms();
    thread::spawn(move || {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let new = running_lvms().into_iter().find(|pid| !before.contains(pid));
            if let Some(pid) = new {
                thread::sleep(after);
                return kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok();
            }
            thread::sleep(Duration::from_micros(200));
        }
        false
    })
}

/// Each `lvm` of this machine that reads commands.
fn running_lvms() -> Vec<i32> {
    let is_one = |path: PathBuf| {
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        line.ends_with(b"/lvm\0")
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| is_one(process.path()))
        .filter_map(|process| process.file_name().to_string_lossy().parse().ok())
        .collect()
}

#[tokio::test]
async fn an_adoption_whose_program_is_killed_loses_nothing() {
    let mut agent = start("thin").await;
    for number in 0..12 {
        volume(&agent, &format!("v{number}"), 4, &raw()).await;
    }
    let mut kills = 0;
    for round in 0..8 {
        let (from, to) = if round % 2 == 0 {
            ("node-a", "node-b")
        } else {
            ("node-b", "node-a")
        };
        let killer = kill_lvm(Duration::from_millis(5 + 8 * round));
        as_node(&mut agent, to, "thin", &format!(", adoptNode: {from}")).await;
        kills += usize::from(killer.join().unwrap());
        let volumes = volumes(&agent).await;
        assert_eq!(volumes.len(), 12, "round {round}\n{}", agent.log());
        assert!(volumes.iter().all(|(id, _)| id.starts_with(to)));
    }
    assert!(kills > 4, "only {kills} kills met a program");
}
