//! `drumlin.v1.GroupController`: the volumes of a group snapshot get its bytes back, all of them or none.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::PathBuf,
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
    agent::{Agent, Options, PATIENCE, Volumes, is_over_lvm, snapshots_bind_their_volume},
    requests::{
        MIB, create, delete, expand, from_snapshot, mounted, publish, raw, snapshot, stage,
        unpublish,
    },
    state::State,
};
use tonic::{Code, Status};

use crate::{
    group_snapshots::{forget, take, together, with_reflinks},
    kit::{bytes_of, get, mount, ok, paths, points, put, refused, unbind_all, unmount, volume},
};

/// Where a raw volume is written to.
const PLACE: u64 = 3 << 20;

/// A volume with a file system and a raw one, which hold words.
struct Pair {
    agent: Agent,
    volumes: [(&'static str, VolumeCapability, String); 2],
}

impl Pair {
    async fn new() -> Self {
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

    fn ids(&self) -> Vec<String> {
        self.volumes.iter().map(|(.., id)| id.clone()).collect()
    }

    /// Has each hold a word of three letters, and nobody use it afterwards.
    async fn write(&self, word: &str) {
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
    async fn read(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (name, capability, id) in &self.volumes {
            words.push(read(&self.agent, name, id, capability).await);
        }
        words
    }

    /// How many snapshots can be seen.
    async fn snapshots(&self) -> usize {
        let request = ListSnapshotsRequest::default();
        let list = ok(self.agent.controller().list_snapshots(request).await);
        list.entries.len()
    }

    async fn ask(
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

fn request(name: &str, taken: &VolumeGroupSnapshot) -> RollbackVolumeGroupSnapshotRequest {
    RollbackVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        group_snapshot_id: taken.group_snapshot_id.clone(),
        discard: false,
    }
}

async fn ask(
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
    ok(groups.delete_volume_group_snapshot(forget(&kept)).await);
    ok(groups.delete_volume_group_snapshot(forget(&one)).await);
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
    ok(groups.delete_volume_group_snapshot(forget(&one)).await);
    pair.write("two").await;
    let two = take(&pair.agent, "one", &pair.ids()).await;
    pair.write("six").await;
    let status = pair.ask("back", &two).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert_eq!(pair.read().await, ["six", "six"]);
    ok(groups.delete_volume_group_snapshot(forget(&kept)).await);
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
    ok(groups.delete_volume_group_snapshot(forget(&other)).await);
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

/// The points of a rollback that calls over this storage come to.
fn own_points() -> Vec<String> {
    let mut points = points("agent/core/src", &["fail::point(\"", "fail::point(\n"]);
    points.retain(|point| is_own(point));
    assert!(points.len() > 10, "{points:?}");
    let other: &[&str] = match Volumes::asked() {
        _ if !is_over_lvm() => &["lvm.", "thick."],
        Volumes::Thin => &["directory.", "thick."],
        Volumes::Linear | Volumes::Raid1 => &["directory.", "lvm."],
    };
    points.retain(|point| !other.iter().any(|other| point.starts_with(other)));
    points.into_iter().collect()
}

/// Whether a point is met in a rollback only.
pub(crate) fn is_own(point: &str) -> bool {
    point.starts_with("roll-back.") || point.contains(".give-back.")
}

#[tokio::test]
async fn killed_at_each_step_it_is_all_or_nothing_and_the_repeat_ends_it() {
    for (turn, point) in own_points().into_iter().enumerate() {
        // Sometimes nobody repeats it, and what is kept is not wanted. The lab is slow, and has one of them for a point.
        let both = [(true, false), (false, true)];
        let kept_alone = ["roll-back.kept", "roll-back.shown"].contains(&point.as_str());
        let these = match (is_over_lvm(), kept_alone) {
            (false, _) => &both[..],
            (true, true) => &both[..1],
            (true, false) => &both[turn % 2..=turn % 2],
        };
        for &(is_repeated, discard) in these {
            let mut pair = Pair::new().await;
            pair.write("one").await;
            // One that is formatted after that moment says other things of itself then.
            let late = volume(&pair.agent, "late", 16, &mounted("ext4")).await;
            let ids = [pair.ids(), vec![late.clone()]].concat();
            let one = take(&pair.agent, "one", &ids).await;
            pair.write("two").await;
            let at = mount(&pair.agent, "late", &late, &mounted("ext4")).await;
            unmount(&pair.agent, &late, &at).await;
            let state = State::of(pair.agent.scratch.path());
            let fail = Options {
                environment: vec![("DRUMLIN_FAIL".to_owned(), point.clone())],
                ..pair.agent.options().clone()
            };
            pair.agent.kill();
            pair.agent.restart_with(fail).await;
            let back = RollbackVolumeGroupSnapshotRequest {
                discard,
                ..request("back", &one)
            };
            if ask(&pair.agent, back.clone()).await.is_ok() {
                // What is kept is not made, and so not shown.
                assert!(discard, "no rollback comes to {point}");
                continue;
            }
            pair.agent.wait_until_killed().await;
            let plain = Options {
                environment: Vec::new(),
                ..pair.agent.options().clone()
            };
            pair.agent.restart_with(plain).await;
            if is_repeated {
                patiently(async || ask(&pair.agent, back.clone()).await).await;
                assert_eq!(pair.read().await, ["one", "one"], "{point}");
                assert_eq!(pair.snapshots().await, 6, "{point}");
                let kept = pair.ask("back", &one).await.unwrap().unwrap();
                let mut groups = pair.agent.group_controller();
                ok(groups.delete_volume_group_snapshot(forget(&kept)).await);
            } else {
                // It ends by itself.
                let words = patiently(async || pair.try_read().await).await;
                assert!(
                    words == ["one", "one"] || words == ["two", "two"],
                    "{words:?} after a kill at {point}"
                );
                let deadline = Instant::now() + PATIENCE;
                while pair.snapshots().await != 3 {
                    assert!(Instant::now() < deadline, "{point}: more is left");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            let at = mount(&pair.agent, "late", &late, &mounted("ext4")).await;
            unmount(&pair.agent, &late, &at).await;
            let after = State::of(pair.agent.scratch.path());
            assert!(after.frozen.is_empty(), "{point}");
            assert_eq!(
                without_labels(&after),
                without_labels(&state),
                "{point}: nothing else is left"
            );
        }
    }
}

impl Pair {
    /// What they hold, if all can be used.
    async fn try_read(&self) -> Result<Vec<String>, Status> {
        for (name, capability, id) in &self.volumes {
            let (staging, _) = paths(&self.agent, name);
            let request = stage(id, &staging, capability);
            self.agent.node().node_stage_volume(request).await?;
        }
        Ok(self.read().await)
    }
}

/// Asks until it is answered with something else than that it must be asked again.
async fn patiently<T>(ask: impl AsyncFn() -> Result<T, Status>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(status) => {
                let may_come = matches!(status.code(), Code::Aborted | Code::Unavailable);
                assert!(may_come && Instant::now() < deadline, "{status}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// What there is, whatever it says of itself.
fn without_labels(state: &State) -> Vec<String> {
    let files = state.files.keys();
    let files = files.map(|path| path.display().to_string());
    let volumes = state.volumes.iter();
    let volumes = volumes.filter_map(|volume| volume.split_whitespace().next());
    let volumes = volumes.flat_map(|volume| volume.split(','));
    let volumes = volumes.filter(|word| !word.contains(":l.rolled="));
    files.chain(volumes.map(str::to_owned)).collect()
}

/// What a rollback cannot go on with.
enum Hindrance {
    /// Somebody looks at the devices.
    Open(Vec<File>),
    /// A snapshot is not where it was.
    Away(PathBuf, PathBuf),
}

impl Hindrance {
    fn of(pair: &Pair, taken: &VolumeGroupSnapshot) -> Self {
        if is_over_lvm() {
            let ids = pair.ids().into_iter();
            let devices = ids.map(|id| File::open(bytes_of(&pair.agent, &id)).unwrap());
            return Self::Open(devices.collect());
        }
        let member = taken.snapshots[1].snapshot_id.rsplit('/').next().unwrap();
        let images = pair.agent.path("images");
        let (there, away) = (images.join("snapshots").join(member), images.join("away"));
        std::fs::rename(&there, &away).unwrap();
        Self::Away(there, away)
    }

    fn go(self) {
        match self {
            Self::Open(devices) => drop(devices),
            Self::Away(there, away) => std::fs::rename(away, there).unwrap(),
        }
    }
}

#[tokio::test]
async fn until_it_has_ended_nobody_uses_its_volumes() {
    let mut pair = Pair::new().await;
    pair.write("one").await;
    let one = take(&pair.agent, "one", &pair.ids()).await;
    pair.write("two").await;
    let fail = Options {
        environment: vec![("DRUMLIN_FAIL".to_owned(), "roll-back.member".to_owned())],
        ..pair.agent.options().clone()
    };
    pair.agent.kill();
    pair.agent.restart_with(fail).await;
    pair.ask("back", &one).await.unwrap_err();
    pair.agent.wait_until_killed().await;
    let hindrance = Hindrance::of(&pair, &one);
    let plain = Options {
        environment: Vec::new(),
        ..pair.agent.options().clone()
    };
    pair.agent.restart_with(plain).await;
    // The agent itself tries to go on.
    let status = loop {
        let status = pair.ask("back", &one).await.unwrap_err();
        if status.code() != Code::Aborted {
            break status;
        }
    };
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    for (name, capability, id) in &pair.volumes {
        let (staging, _) = paths(&pair.agent, name);
        let request = stage(id, &staging, capability);
        let why = refused(
            pair.agent.node().node_stage_volume(request).await,
            Code::Aborted,
        );
        assert!(why.contains(&one.group_snapshot_id), "{why}");
        let deleted = pair.agent.controller().delete_volume(delete(id)).await;
        refused(deleted, Code::Aborted);
        let taken = pair.agent.controller();
        let taken = { taken }.create_snapshot(snapshot("s", id)).await;
        refused(taken, Code::Aborted);
        let look = ControllerGetVolumeRequest {
            volume_id: id.clone(),
        };
        let found = ok(pair.agent.controller().controller_get_volume(look).await);
        let condition = found.status.unwrap().volume_condition.unwrap();
        assert!(condition.abnormal, "{condition:?}");
    }
    let mut groups = pair.agent.group_controller();
    let deleted = groups.delete_volume_group_snapshot(forget(&one)).await;
    refused(deleted, Code::Aborted);
    hindrance.go();
    patiently(async || pair.ask("back", &one).await).await;
    assert_eq!(pair.read().await, ["one", "one"]);
    unbind_all(&pair.agent, &one).await;
}
