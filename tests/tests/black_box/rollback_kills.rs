//! Rollbacks that are interrupted: all or none, whoever repeats them.

use std::{
    fs::File,
    path::PathBuf,
    time::{Duration, Instant},
};

use drumlin_proto::{
    csi::v1::{ControllerGetVolumeRequest, VolumeGroupSnapshot},
    drumlin::v1::RollbackVolumeGroupSnapshotRequest,
};
use drumlin_tests::{
    agent::{Options, PATIENCE, Volumes, is_over_lvm, is_thorough},
    requests::{delete, delete_group_snapshot, mounted, snapshot, stage},
    sources,
    state::State,
};
use tonic::{Code, Status};

use crate::{
    group_snapshots::take,
    helpers::{bytes_of, mount, ok, paths, refused, unbind_all, unmount, volume},
    rollback::{Pair, ask, request},
};

/// The points of a rollback that calls over this storage come to.
fn own_points() -> Vec<String> {
    let mut points = sources::agent_points();
    points.retain(|point| is_own(point));
    assert!(points.len() > 10, "{points:?}");
    let other: &[&str] = match Volumes::asked() {
        _ if !is_over_lvm() => &["lvm.", "thick."],
        Volumes::Thin => &["directory.", "thick."],
        Volumes::Linear | Volumes::Raid1 => &["directory.", "lvm."],
    };
    points.retain(|point| !other.iter().any(|other| point.starts_with(other)));
    let mut number = 0;
    points.retain(|point| {
        !point.starts_with("rollback.") || {
            number += 1;
            is_due(number)
        }
    });
    points.into_iter().collect()
}

/// Whether the point of this number, of those that are no back end's own, is met here. The lab is slow: each kind of logical
/// volumes has its share of them on each change, and all of them before a release.
fn is_due(number: usize) -> bool {
    let share = match Volumes::asked() {
        _ if !is_over_lvm() || is_thorough() => return true,
        Volumes::Thin => 0,
        Volumes::Linear | Volumes::Raid1 => 1,
    };
    number % 2 == share
}

/// Whether a point is met in a rollback only.
pub(crate) fn is_own(point: &str) -> bool {
    point.starts_with("rollback.") || point.contains(".rollback.")
}

#[tokio::test]
async fn killed_at_each_step_it_is_all_or_nothing_and_the_repeat_ends_it() {
    for (turn, point) in own_points().into_iter().enumerate() {
        // Sometimes nobody repeats it, and what is kept is not wanted. The lab is slow, and has one of them for a point.
        let both = [(true, false), (false, true)];
        let kept_alone = ["rollback.kept", "rollback.shown"].contains(&point.as_str());
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
            let fail = pair.agent.options().clone().killed_at(&point);
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
                ok(groups
                    .delete_volume_group_snapshot(delete_group_snapshot(&kept))
                    .await);
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
    let volumes = volumes.filter(|word| !word.contains(":l.last-rollback="));
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
    let fail = pair.agent.options().clone().killed_at("rollback.member");
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
    let deleted = groups
        .delete_volume_group_snapshot(delete_group_snapshot(&one))
        .await;
    refused(deleted, Code::Aborted);
    hindrance.go();
    patiently(async || pair.ask("back", &one).await).await;
    assert_eq!(pair.read().await, ["one", "one"]);
    unbind_all(&pair.agent, &one).await;
}
