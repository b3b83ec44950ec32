//! Snapshots that an administrator has LVM merge into their volumes: the merge is theirs, and so is when it begins.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use drumlin_proto::{
    csi::v1::{CreateVolumeRequest, ListSnapshotsRequest},
    drumlin::v1::RollbackVolumeGroupSnapshotRequest,
};
use drumlin_tests::{
    agent::{Agent, PATIENCE},
    programs::run,
    requests::{create, delete, expand, from_volume, raw, snapshot},
    storage::lvm,
};
use tonic::Code;

use crate::{
    group_snapshots::together,
    groups::{group, name_of, names, thick, thin},
    helpers::{mount, ok, refused, unmount, volume},
};

/// What is in a volume before it has the snapshot that is merged, and what is written over it since.
const BEFORE: [u8; 8] = *b"snapshot";
/// What is written over it.
const SINCE: [u8; 8] = *b"changed ";

/// Where something is written over after the agent has started again.
const LATER: u64 = 8 << 20;

fn write(device: &str, at: u64, bytes: [u8; 8]) {
    let device = File::options().write(true).open(device).unwrap();
    device.write_all_at(&bytes, at).unwrap();
    device.sync_all().unwrap();
}

fn read(device: &str, at: u64) -> [u8; 8] {
    run("blockdev", &["--flushbufs", device]);
    let mut bytes = [0; 8];
    let device = File::open(device).unwrap();
    device.read_exact_at(&mut bytes, at).unwrap();
    bytes
}

/// Has LVM merge a snapshot into its volume, which it puts off while that is used.
fn merge(agent: &Agent, name: &str) {
    // It does not look again for five seconds whether that ends.
    let words = ["--config", "activation/retry_deactivation=0", "--merge"];
    let path = format!("{}/{name}", group(agent));
    run("lvconvert", &[&words[..], &[&path]].concat());
}

/// The lines of device-mapper's tables that are of the volume and its snapshot, which have only this group.
fn tables(agent: &Agent, names: &[&str]) -> Vec<String> {
    let group = group(agent).replace('-', "--");
    let tables = run("dmsetup", &["table"]);
    let is_of = |line: &&str| {
        let of = names
            .iter()
            .map(|name| format!("{group}-{}", name.replace('-', "--")));
        of.into_iter().any(|name| line.starts_with(&name))
    };
    let mut lines: Vec<String> = tables.lines().filter(is_of).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Has the agent look for what a killed one may have left.
async fn start_anew(agent: &mut Agent) {
    agent.kill();
    agent.restart().await;
    let id = volume(agent, "another", 4, &raw()).await;
    ok(agent.controller().delete_volume(delete(&id)).await);
}

/// Takes a snapshot of a volume and returns what LVM calls it.
async fn take(agent: &Agent, name: &str, of: &str) -> String {
    let answer = agent.controller().create_snapshot(snapshot(name, of)).await;
    let id = ok(answer).snapshot.unwrap().snapshot_id;
    name_of(&id).replace("dl-v-", "dl-s-")
}

async fn snapshots(agent: &Agent) -> usize {
    let list = agent
        .controller()
        .list_snapshots(ListSnapshotsRequest::default())
        .await;
    ok(list).entries.len()
}

async fn until_gone(agent: &Agent, name: &str) {
    let deadline = Instant::now() + PATIENCE;
    while names(agent).iter().any(|there| there == name) {
        assert!(Instant::now() < deadline, "{name} is not merged");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_merge_that_waits_for_its_volume_begins_when_its_administrator_says() {
    let mut agent = thick(512, "layout: linear, wipe: zero").await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    write(&at.1, 0, BEFORE);
    let (name, merged) = (name_of(&id), take(&agent, "s", &id).await);
    write(&at.1, 0, SINCE);
    let path = format!("{}/{name}", group(&agent));
    let used = File::open(&at.1).unwrap();
    merge(&agent, &merged);
    let before = tables(&agent, &[&name, &merged]);
    assert!(
        before.iter().any(|line| line.contains("snapshot-origin")),
        "{before:?}"
    );

    start_anew(&mut agent).await;
    assert_eq!(tables(&agent, &[&name, &merged]), before, "{}", agent.log());
    assert!(
        !agent.log().contains("refreshing devices"),
        "{}",
        agent.log()
    );
    write(&at.1, LATER, SINCE);
    drop(used);
    unmount(&agent, &id, &at).await;
    start_anew(&mut agent).await;
    assert_eq!(tables(&agent, &[&name, &merged]), before, "{}", agent.log());
    assert_eq!(read(&format!("/dev/{path}"), 0), SINCE);
    assert_eq!(
        snapshots(&agent).await,
        0,
        "what is merged is nobody's any more"
    );
    let mut controller = agent.controller();
    let sized = controller.controller_expand_volume(expand(&id, 64)).await;
    let copied = controller.create_snapshot(snapshot("t", &id)).await;
    let mut groups = agent.group_controller();
    let taken = groups.create_volume_group_snapshot(together("g", &[id.clone()]));
    for message in [
        refused(taken.await, Code::Aborted),
        refused(controller.delete_volume(delete(&id)).await, Code::Aborted),
        refused(sized, Code::Aborted),
        refused(copied, Code::Aborted),
    ] {
        assert!(
            message.contains(&format!("lvchange --refresh {path}")),
            "{message}"
        );
    }
    assert_eq!(tables(&agent, &[&name, &merged]), before, "{}", agent.log());

    lvm("lvchange", &["--refresh", &path]);
    lvm("lvchange", &["--poll", "y", &path]);
    until_gone(&agent, &merged).await;
    assert_eq!(read(&format!("/dev/{path}"), 0), BEFORE);
    let later = read(&format!("/dev/{path}"), LATER);
    assert_eq!(later, [0; 8], "it was not kept when it was written over");
    ok(agent.controller().delete_volume(delete(&id)).await);
    assert!(names(&agent).is_empty());
}

#[tokio::test]
async fn a_thin_volume_is_not_copied_while_a_snapshot_is_to_be_merged_into_it() {
    let agent = thin(300, &["-L", "200M"], "overcommit: 10").await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    write(&at.1, 0, BEFORE);
    let mut groups = agent.group_controller();
    let taken = groups.create_volume_group_snapshot(together("earlier", &[id.clone()]));
    let earlier = ok(taken.await).group_snapshot.unwrap().group_snapshot_id;
    let (name, merged) = (name_of(&id), take(&agent, "s", &id).await);
    write(&at.1, 0, SINCE);
    let path = format!("{}/{name}", group(&agent));
    let used = File::open(&at.1).unwrap();
    merge(&agent, &merged);
    let before = names(&agent);
    let copied = agent.controller().create_snapshot(snapshot("t", &id)).await;
    let taken = agent
        .group_controller()
        .create_volume_group_snapshot(together("g", &[id.clone()]))
        .await;
    let copy = CreateVolumeRequest {
        volume_content_source: from_volume(&id),
        ..create("copy", 32, &raw())
    };
    let made = agent.controller().create_volume(copy).await;
    for message in [
        refused(copied, Code::Aborted),
        refused(taken, Code::Aborted),
        refused(made, Code::Aborted),
    ] {
        assert!(message.contains(&merged), "{message}");
    }
    drop(used);
    unmount(&agent, &id, &at).await;
    let back = RollbackVolumeGroupSnapshotRequest {
        name: "back".to_owned(),
        group_snapshot_id: earlier,
        discard: true,
    };
    let back = agent.own().rollback_volume_group_snapshot(back).await;
    let mut controller = agent.controller();
    let sized = controller.controller_expand_volume(expand(&id, 64)).await;
    for message in [
        refused(back, Code::Aborted),
        refused(sized, Code::Aborted),
        refused(controller.delete_volume(delete(&id)).await, Code::Aborted),
    ] {
        assert!(message.contains(&merged), "{message}");
    }
    assert_eq!(names(&agent), before);
    assert_eq!(read(&format!("/dev/{path}"), 0), SINCE);
    lvm("lvchange", &["-an", &path]);
    lvm("lvchange", &["-ay", &path]);
    until_gone(&agent, &merged).await;
    assert_eq!(read(&format!("/dev/{path}"), 0), BEFORE);
    let copied = agent.controller().create_snapshot(snapshot("t", &id)).await;
    ok(copied);
}
