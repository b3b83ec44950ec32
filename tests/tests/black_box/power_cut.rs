//! What was answered over an image directory survives a power cut.
//!
//! A copy of the disk below the file system has what was brought to it, and nothing of what the kernel still keeps in
//! memory. (That a disk keeps what it was told to flush is not tested here; `tests/tests/power` cuts the power of a
//! whole machine.)

use std::fs;

use drumlin_proto::csi::v1::{DeleteSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::run,
    requests::{create, delete, expand, from_snapshot, raw, snapshot},
    storage::{Kind, Scratch},
};

use crate::helpers::{bytes_of, ok, text, volume};

const BYTES: &[u8] = b"written before the snapshot";

fn options(scratch: &Scratch) -> Options {
    Options::of_directory(&scratch.path().join("images"))
}

/// A disk of an agent, and the file system on it, as they are after a cut at this moment.
pub(crate) fn disk_after_a_cut(agent: &Agent, name: &str) -> Scratch {
    let scratch = Scratch::new();
    let image = format!("{name}.img");
    let disk = scratch.path().join(&image);
    let (from, to) = (text(agent.path(&image)), text(disk.clone()));
    run("cp", &["--sparse=always", &from, &to]);
    // Another UUID is not needed: the one of xfs is not looked at.
    let target = text(scratch.directory(name));
    let how = match file_system(&disk).as_str() {
        "xfs" => "loop,nouuid",
        _ => "loop",
    };
    run("mount", &["-o", how, &to, &target]);
    scratch
}

/// An agent over the disk of another one, as it is after a cut at this moment.
async fn after_a_cut(agent: &Agent) -> Agent {
    let scratch = disk_after_a_cut(agent, "images");
    let options = options(&scratch);
    Agent::with(scratch, options).await
}

fn file_system(disk: &std::path::Path) -> String {
    let found = run(
        "blkid",
        &["-p", "-s", "TYPE", "-o", "value", &text(disk.to_owned())],
    );
    found.trim().to_owned()
}

/// What is listed, each in order, with its size in MiB.
async fn listed(agent: &Agent) -> Vec<(String, i64)> {
    let mut controller = agent.controller();
    let volumes = ok(controller.list_volumes(ListVolumesRequest::default()).await);
    let snapshots = ok(controller
        .list_snapshots(ListSnapshotsRequest::default())
        .await);
    let volumes = volumes.entries.into_iter().map(|entry| {
        // One whose record is lost is listed by its bytes.
        let condition = entry.status.unwrap().volume_condition.unwrap();
        assert!(!condition.abnormal, "{}", condition.message);
        let volume = entry.volume.unwrap();
        (volume.volume_id, volume.capacity_bytes >> 20)
    });
    let snapshots = snapshots.entries.into_iter().map(|entry| {
        let snapshot = entry.snapshot.unwrap();
        (snapshot.snapshot_id, snapshot.size_bytes >> 20)
    });
    let mut all: Vec<_> = volumes.chain(snapshots).collect();
    all.sort();
    all
}

async fn what_was_answered_survives(kind: Kind) {
    let scratch = Scratch::new();
    scratch.file_system("images", kind, 320);
    let options = options(&scratch);
    let agent = Agent::with(scratch, options).await;
    let mut controller = agent.controller();

    let one = volume(&agent, "one", 4, &raw()).await;
    assert_eq!(listed(&after_a_cut(&agent).await).await, [(one.clone(), 4)]);

    ok(controller.controller_expand_volume(expand(&one, 8)).await);
    assert_eq!(listed(&after_a_cut(&agent).await).await, [(one.clone(), 8)]);

    // Bytes that nobody has synced are in the snapshot; the copy is synced, whatever becomes of the volume's own.
    let path = bytes_of(&agent, &one);
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, BYTES, 0).unwrap();
    let taken = ok(controller.create_snapshot(snapshot("s", &one)).await);
    let taken = taken.snapshot.unwrap().snapshot_id;
    let cut = after_a_cut(&agent).await;
    let mut expected = vec![(one.clone(), 8), (taken.clone(), 8)];
    expected.sort();
    assert_eq!(listed(&cut).await, expected);
    let kept = fs::read(bytes_of(&cut, &taken)).unwrap();
    assert!(kept.starts_with(BYTES), "{kind:?}");

    let mut request = create("two", 8, &raw());
    request.volume_content_source = from_snapshot(&taken);
    let two = ok(controller.create_volume(request).await);
    let two = two.volume.unwrap().volume_id;
    let cut = after_a_cut(&agent).await;
    assert_eq!(listed(&cut).await.len(), 3);
    let kept = fs::read(bytes_of(&cut, &two)).unwrap();
    assert!(kept.starts_with(BYTES), "{kind:?}");

    let gone = DeleteSnapshotRequest {
        snapshot_id: taken,
        ..Default::default()
    };
    ok(controller.delete_snapshot(gone).await);
    ok(controller.delete_volume(delete(&one)).await);
    assert_eq!(listed(&after_a_cut(&agent).await).await, [(two, 8)]);
}

#[tokio::test]
async fn what_was_answered_survives_on_ext4() {
    what_was_answered_survives(Kind::Ext4).await;
}

#[tokio::test]
async fn what_was_answered_survives_on_xfs() {
    what_was_answered_survives(Kind::Xfs).await;
}
