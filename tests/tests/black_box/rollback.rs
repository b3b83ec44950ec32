//! `drumlin.v1.GroupController`: the volumes of a group snapshot get its bytes back, all of them or none.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use drumlin_proto::{
    csi::v1::{
        ControllerGetVolumeRequest, CreateVolumeRequest, ListSnapshotsRequest, VolumeCapability,
        VolumeGroupSnapshot,
    },
    drumlin::v1::RollbackVolumeGroupSnapshotRequest,
};
use drumlin_tests::{
    agent::{Agent, PATIENCE, is_over_lvm, snapshots_bind_their_volume},
    requests::{
        MIB, create, delete, delete_group_snapshot, expand, from_snapshot, mounted, publish, raw,
        snapshot, stage, unpublish,
    },
};
use tonic::{Code, Status};

use crate::{
    group_snapshots::{take, together, with_reflinks},
    helpers::{bytes_of, get, mount, ok, paths, put, refused, unmount, volume},
};

/// Where a raw volume is written to.
const PLACE: u64 = 3 << 20;

/// A volume with a file system and a raw one, which hold words.
pub(crate) struct Pair {
    pub(crate) agent: Agent,
    pub(crate) volumes: [(&'static str, VolumeCapability, String); 2],
}

impl Pair {
    pub(crate) async fn new() -> Self {
        let agent = with_reflinks(1 << 10).await;
        let mut volumes = Vec::new();
        for (name, capability) in [("mounted", mounted("ext4")), ("raw", raw())] {
            let id = volume(&agent, name, 32, &capability).await;
            volumes.push((name, capability, id));
        }
        Self {
            agent,
            volumes: volumes.try_into().unwrap(),
        }
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.volumes.iter().map(|(.., id)| id.clone()).collect()
    }

    /// Has each hold a word of three letters, and nobody use it afterwards.
    pub(crate) async fn write(&self, word: &str) {
        for (name, capability, id) in &self.volumes {
            let at = mount(&self.agent, name, id, capability).await;
            if *name == "raw" {
                let device = File::options().write(true).open(&at.1).unwrap();
                device.write_all_at(word.as_bytes(), PLACE).unwrap();
                device.sync_all().unwrap();
                drop(device);
            } else {
                put(&at.1, "word", word.as_bytes());
            }
            leave(&self.agent, id, &at).await;
        }
    }

    /// What they hold.
    pub(crate) async fn read(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (name, capability, id) in &self.volumes {
            words.push(read(&self.agent, name, id, capability).await);
        }
        words
    }

    /// How many snapshots can be seen.
    pub(crate) async fn snapshots(&self) -> usize {
        let request = ListSnapshotsRequest::default();
        let list = ok(self.agent.controller().list_snapshots(request).await);
        list.entries.len()
    }

    pub(crate) async fn ask(
        &self,
        name: &str,
        taken: &VolumeGroupSnapshot,
    ) -> Result<Option<VolumeGroupSnapshot>, Status> {
        ask(&self.agent, request(name, taken)).await
    }
}

/// Unmounts a volume that this process had open: a program that another test starts just then has it open, too, until it
/// is a program of its own.
async fn leave(agent: &Agent, id: &str, at: &(String, String)) {
    let deadline = Instant::now() + PATIENCE;
    let request = unpublish(id, &at.1);
    while let Err(status) = agent.node().node_unpublish_volume(request.clone()).await {
        let is_open = status.code() == Code::FailedPrecondition;
        assert!(is_open && Instant::now() < deadline, "{status}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unmount(agent, id, at).await;
}

async fn read(agent: &Agent, name: &str, id: &str, capability: &VolumeCapability) -> String {
    let at = mount(agent, name, id, capability).await;
    let word = if *capability == raw() {
        let mut word = [0; 3];
        let device = File::open(&at.1).unwrap();
        device.read_exact_at(&mut word, PLACE).unwrap();
        word.to_vec()
    } else {
        get(&at.1, "word")
    };
    leave(agent, id, &at).await;
    String::from_utf8(word).unwrap()
}

pub(crate) fn request(
    name: &str,
    taken: &VolumeGroupSnapshot,
) -> RollbackVolumeGroupSnapshotRequest {
    RollbackVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        group_snapshot_id: taken.group_snapshot_id.clone(),
        discard: false,
    }
}

pub(crate) async fn ask(
    agent: &Agent,
    request: RollbackVolumeGroupSnapshotRequest,
) -> Result<Option<VolumeGroupSnapshot>, Status> {
    let answer = agent.own().rollback_volume_group_snapshot(request).await?;
    Ok(answer.into_inner().kept)
}

#[tokio::test]
async fn all_volumes_get_their_bytes_back_and_what_they_held_is_kept() {
    let pair = Pair::new().await;
    pair.write("one").await;
    let one = take(&pair.agent, "one", &pair.ids()).await;
    pair.write("two").await;
    let kept = pair.ask("back", &one).await.unwrap().unwrap();
    assert_eq!(pair.read().await, ["one", "one"]);
    assert!(kept.ready_to_use);
    assert_eq!(kept.snapshots.len(), 2);
    assert_eq!(pair.snapshots().await, 4);
    // A repeat does nothing more, whatever has been written since.
    pair.write("new").await;
    assert_eq!(pair.ask("back", &one).await.unwrap(), Some(kept.clone()));
    assert_eq!(pair.read().await, ["new", "new"]);
    // What was kept is a group snapshot like others: it is restored from, gone back to, and deleted.
    let member = &kept.snapshots[0];
    let mut volumes = pair.volumes.iter();
    let (_, capability, _) = volumes
        .find(|(.., id)| *id == member.source_volume_id)
        .unwrap();
    let restore = CreateVolumeRequest {
        volume_content_source: from_snapshot(&member.snapshot_id),
        ..create("restored", 32, capability)
    };
    let restored = ok(pair.agent.controller().create_volume(restore).await);
    let restored = restored.volume.unwrap().volume_id;
    let word = read(&pair.agent, "restored", &restored, capability).await;
    assert_eq!(word, "two");
    let discarding = RollbackVolumeGroupSnapshotRequest {
        discard: true,
        ..request("forth", &kept)
    };
    assert_eq!(ask(&pair.agent, discarding).await.unwrap(), None);
    assert_eq!(pair.read().await, ["two", "two"]);
    assert_eq!(pair.snapshots().await, 4, "nothing was kept of that");
    // There and back again, by another name.
    pair.ask("again", &one).await.unwrap().unwrap();
    assert_eq!(pair.read().await, ["one", "one"]);
    let mut groups = pair.agent.group_controller();
    ok(groups
        .delete_volume_group_snapshot(delete_group_snapshot(&kept))
        .await);
    ok(groups
        .delete_volume_group_snapshot(delete_group_snapshot(&one))
        .await);
    assert_eq!(pair.snapshots().await, 2);
    assert_eq!(pair.read().await, ["one", "one"]);
}

#[tokio::test]
async fn a_volume_keeps_the_size_and_the_name_that_it_has_by_now() {
    let pair = Pair::new().await;
    pair.write("one").await;
    let one = take(&pair.agent, "one", &pair.ids()).await;
    for id in pair.ids() {
        let request = expand(&id, 64);
        ok(pair
            .agent
            .controller()
            .controller_expand_volume(request)
            .await);
    }
    pair.write("two").await;
    pair.ask("back", &one).await.unwrap();
    assert_eq!(pair.read().await, ["one", "one"]);
    let (name, capability, id) = &pair.volumes[0];
    let request = ControllerGetVolumeRequest {
        volume_id: id.clone(),
    };
    let found = pair.agent.controller().controller_get_volume(request).await;
    assert_eq!(ok(found).volume.unwrap().capacity_bytes, 64 * MIB);
    // The file system of the moment was smaller, and is grown when it is staged.
    let at = mount(&pair.agent, name, id, capability).await;
    put(&at.1, "large", &vec![7; 40 << 20]);
    unmount(&pair.agent, id, &at).await;
}

#[tokio::test]
async fn what_was_never_formatted_at_that_moment_is_formatted_again() {
    let pair = Pair::new().await;
    let blank = take(&pair.agent, "blank", &pair.ids()).await;
    pair.write("one").await;
    let (name, capability, id) = &pair.volumes[0];
    // Its end was never that of a blank volume.
    let grow = expand(id, 64);
    ok(pair.agent.controller().controller_expand_volume(grow).await);
    let end = File::options().write(true).open(device(&pair.agent, id));
    let end = end.unwrap();
    end.write_all_at(&vec![0xff; 30 << 20], 33 << 20).unwrap();
    end.sync_all().unwrap();
    drop(end);
    pair.ask("back", &blank).await.unwrap();
    let at = mount(&pair.agent, name, id, capability).await;
    assert!(!std::path::Path::new(&at.1).join("word").exists());
    put(&at.1, "word", b"new");
    unmount(&pair.agent, id, &at).await;
    drumlin_tests::programs::run("e2fsck", &["-fn", &device(&pair.agent, id)]);
}

/// Where the bytes of a volume that nobody uses can be looked at.
fn device(agent: &Agent, id: &str) -> String {
    bytes_of(agent, id).to_string_lossy().into_owned()
}

#[tokio::test]
async fn a_name_is_that_of_one_rollback() {
    let pair = Pair::new().await;
    pair.write("one").await;
    let one = take(&pair.agent, "one", &pair.ids()).await;
    let kept = pair.ask("back", &one).await.unwrap().unwrap();
    // What is kept was not asked for as a group snapshot.
    let request = together("back", &pair.ids());
    let mut groups = pair.agent.group_controller();
    let taken = groups.create_volume_group_snapshot(request).await;
    refused(taken, Code::AlreadyExists);
    // Another group snapshot under the same name has nothing to do with it.
    ok(groups
        .delete_volume_group_snapshot(delete_group_snapshot(&one))
        .await);
    pair.write("two").await;
    let two = take(&pair.agent, "one", &pair.ids()).await;
    pair.write("six").await;
    let status = pair.ask("back", &two).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert_eq!(pair.read().await, ["six", "six"]);
    ok(groups
        .delete_volume_group_snapshot(delete_group_snapshot(&kept))
        .await);
    pair.ask("back", &two).await.unwrap().unwrap();
    assert_eq!(pair.read().await, ["two", "two"]);
}

#[tokio::test]
async fn a_raw_volume_that_is_staged_can_be_published_whatever_becomes_of_a_rollback() {
    let pair = Pair::new().await;
    pair.write("one").await;
    let one = take(&pair.agent, "one", &pair.ids()).await;
    let (name, capability, id) = &pair.volumes[1];
    let (staging, target) = paths(&pair.agent, name);
    let request = stage(id, &staging, capability);
    ok(pair.agent.node().node_stage_volume(request).await);
    let answer = pair.ask("back", &one).await;
    if !is_over_lvm() {
        assert_eq!(answer.unwrap_err().code(), Code::FailedPrecondition);
    }
    let request = publish(id, (&staging, &target), capability);
    ok(pair.agent.node().node_publish_volume(request).await);
    unmount(&pair.agent, id, &(staging, target)).await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_name_and_nothing_is_changed() {
    let pair = Pair::new().await;
    pair.write("one").await;
    let one = take(&pair.agent, "one", &pair.ids()).await;
    pair.write("two").await;
    // Used: staged and published, mounted and raw.
    for (name, capability, id) in &pair.volumes {
        let at = mount(&pair.agent, name, id, capability).await;
        let status = pair.ask("back", &one).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains(id), "{status}");
        assert!(status.message().contains(name), "says where: {status}");
        unmount(&pair.agent, id, &at).await;
    }
    for (wrong, code) in [
        (request("", &one), Code::InvalidArgument),
        (request("one", &one), Code::AlreadyExists),
        (
            RollbackVolumeGroupSnapshotRequest {
                group_snapshot_id: String::new(),
                ..request("back", &one)
            },
            Code::InvalidArgument,
        ),
        (
            RollbackVolumeGroupSnapshotRequest {
                group_snapshot_id: "node-a/default/none".to_owned(),
                ..request("back", &one)
            },
            Code::NotFound,
        ),
        (
            // Not a group snapshot, but a member of one.
            RollbackVolumeGroupSnapshotRequest {
                group_snapshot_id: one.snapshots[0].snapshot_id.clone(),
                ..request("back", &one)
            },
            Code::NotFound,
        ),
    ] {
        let status = ask(&pair.agent, wrong.clone()).await.unwrap_err();
        assert_eq!(status.code(), code, "{wrong:?}: {status}");
    }
    let other = take(&pair.agent, "other", &pair.ids()[..1]).await;
    let status = pair.ask("other", &one).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert_eq!(pair.read().await, ["two", "two"]);
    assert_eq!(pair.snapshots().await, 3);
    let mut groups = pair.agent.group_controller();
    ok(groups
        .delete_volume_group_snapshot(delete_group_snapshot(&other))
        .await);
    if snapshots_bind_their_volume() {
        return;
    }
    // A volume that is gone, and one that was made anew in its place.
    let id = &pair.volumes[1].2;
    ok(pair.agent.controller().delete_volume(delete(id)).await);
    let status = pair.ask("back", &one).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    assert!(status.message().contains(id), "{status}");
    volume(&pair.agent, "raw", 16, &raw()).await;
    let status = pair.ask("back", &one).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert_eq!(pair.snapshots().await, 2);
    let id = &pair.volumes[0].2;
    let word = read(&pair.agent, "mounted", id, &mounted("ext4")).await;
    assert_eq!(word, "two");
}

#[tokio::test]
async fn copies_of_a_volume_are_what_they_were() {
    let pair = Pair::new().await;
    pair.write("one").await;
    let one = take(&pair.agent, "one", &pair.ids()).await;
    pair.write("two").await;
    let (_, capability, id) = &pair.volumes[1];
    let alone = ok(pair
        .agent
        .controller()
        .create_snapshot(snapshot("alone", id))
        .await);
    let alone = alone.snapshot.unwrap().snapshot_id;
    let copy = |from: &str, name: &str| CreateVolumeRequest {
        volume_content_source: from_snapshot(from),
        ..create(name, 32, capability)
    };
    let before = copy(&alone, "before");
    let before = ok(pair.agent.controller().create_volume(before).await);
    pair.write("six").await;
    pair.ask("back", &one).await.unwrap();
    pair.write("ten").await;
    let after = copy(&alone, "after");
    let after = ok(pair.agent.controller().create_volume(after).await);
    for (name, made) in [("before", before), ("after", after)] {
        let id = made.volume.unwrap().volume_id;
        let word = read(&pair.agent, name, &id, capability).await;
        assert_eq!(word, "two", "{name}");
    }
}
