//! Killed between any two steps, and at random instants: the same calls again end where one uninterrupted run ends.
//!
//! The points are read from the sources, so none can be forgotten: one that no call comes to fails its test.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use drumlin_proto::{
    csi::v1::{
        ControllerModifyVolumeRequest, ControllerPublishVolumeRequest,
        CreateVolumeGroupSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
        DeleteVolumeGroupSnapshotRequest, NodeExpandVolumeRequest, NodePublishVolumeRequest,
        VolumeCapability,
    },
    drumlin::v1::{ObjectKind, SetOwnerRequest},
    volumegroup::{
        CreateVolumeGroupRequest, DeleteVolumeGroupRequest, ModifyVolumeGroupMembershipRequest,
    },
};
use drumlin_tests::{
    agent::{Agent, Volumes, is_over_lvm},
    programs::programs_of,
    requests::{
        create, delete, expand, from_snapshot, from_volume, mounted, publish, raw, snapshot, stage,
        unpublish, unstage,
    },
    sources,
    state::State,
};

use crate::{
    helpers::{detach, paths},
    rollback_kills,
    subject::Subject,
    unstaged_kills,
};

/// Everything that changes something, once; the state after each call.
async fn life(
    subject: &mut Subject,
    capability: &VolumeCapability,
    mebibytes: i64,
) -> Vec<(String, State)> {
    let mut states = Vec::new();
    macro_rules! step {
        ($name:literal, $call:expr) => {{
            let answer = subject.call($name, $call).await;
            states.push(($name.to_owned(), subject.state().await));
            answer
        }};
    }
    let (staging, target) = paths(&subject.agent, "v");
    let read_only_target = format!("{target}-ro");
    let new = create("v", mebibytes, capability);
    let id = step!("create", async |agent: &Agent| agent
        .controller()
        .create_volume(new.clone())
        .await)
    .volume
    .unwrap()
    .volume_id;
    let attach = |id: &str| ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(capability.clone()),
        ..ControllerPublishVolumeRequest::default()
    };
    step!("attach", async |agent: &Agent| agent
        .controller()
        .controller_publish_volume(attach(&id))
        .await);
    step!("stage", async |agent: &Agent| agent
        .node()
        .node_stage_volume(stage(&id, &staging, capability))
        .await);
    step!("publish", async |agent: &Agent| agent
        .node()
        .node_publish_volume(publish(&id, (&staging, &target), capability))
        .await);
    let read_only = NodePublishVolumeRequest {
        readonly: true,
        ..publish(&id, (&staging, &read_only_target), capability)
    };
    step!("publish read-only", async |agent: &Agent| agent
        .node()
        .node_publish_volume(read_only.clone())
        .await);
    let taken = step!("snapshot", async |agent: &Agent| agent
        .controller()
        .create_snapshot(snapshot("s", &id))
        .await)
    .snapshot
    .unwrap();
    for (kind, object_id) in [
        (ObjectKind::Volume, &id),
        (ObjectKind::Snapshot, &taken.snapshot_id),
    ] {
        let owned = SetOwnerRequest {
            kind: kind.into(),
            object_id: object_id.clone(),
            owner: [("drumlin.dev/name".to_owned(), "data".to_owned())].into(),
        };
        step!("set the owner", async |agent: &Agent| agent
            .inventory()
            .set_owner(owned.clone())
            .await);
    }
    let copy = |name: &str| create(name, mebibytes * 2, capability);
    let restore = CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken.snapshot_id),
        ..copy("restored")
    };
    let restored = step!("restore", async |agent: &Agent| agent
        .controller()
        .create_volume(restore.clone())
        .await)
    .volume
    .unwrap()
    .volume_id;
    let clone = CreateVolumeRequest {
        volume_content_source: from_volume(&id),
        ..copy("cloned")
    };
    let cloned = step!("clone", async |agent: &Agent| agent
        .controller()
        .create_volume(clone.clone())
        .await)
    .volume
    .unwrap()
    .volume_id;
    let group = CreateVolumeGroupRequest {
        name: "g".to_owned(),
        volume_ids: vec![id.clone()],
        ..CreateVolumeGroupRequest::default()
    };
    let group = step!("group", async |agent: &Agent| agent
        .groups()
        .create_volume_group(group.clone())
        .await)
    .volume_group
    .unwrap()
    .volume_group_id;
    let members = |volume_ids: Vec<String>| ModifyVolumeGroupMembershipRequest {
        volume_group_id: group.clone(),
        volume_ids,
        ..ModifyVolumeGroupMembershipRequest::default()
    };
    for list in [vec![id.clone(), restored.clone()], vec![cloned.clone()]] {
        step!("regroup", async |agent: &Agent| agent
            .groups()
            .modify_volume_group_membership(members(list.clone()))
            .await);
    }
    let (other_staging, _) = paths(&subject.agent, "restored");
    step!("attach the restored", async |agent: &Agent| agent
        .controller()
        .controller_publish_volume(attach(&restored))
        .await);
    step!("stage the restored", async |agent: &Agent| agent
        .node()
        .node_stage_volume(stage(&restored, &other_staging, capability))
        .await);
    step!("unstage the restored", async |agent: &Agent| agent
        .node()
        .node_unstage_volume(unstage(&restored, &other_staging))
        .await);
    step!("detach the restored", async |agent: &Agent| agent
        .controller()
        .controller_unpublish_volume(detach(&restored))
        .await);
    // A thick volume that is used cannot grow while it has snapshots.
    let forget = DeleteSnapshotRequest {
        snapshot_id: taken.snapshot_id.clone(),
        ..DeleteSnapshotRequest::default()
    };
    step!("delete the snapshot", async |agent: &Agent| agent
        .controller()
        .delete_snapshot(forget.clone())
        .await);
    // What a raw user of an image writes nobody can hold.
    let is_held = is_over_lvm() || *capability != raw();
    let members = [
        if is_held { id.clone() } else { cloned.clone() },
        restored.clone(),
    ];
    let together = CreateVolumeGroupSnapshotRequest {
        name: "together".to_owned(),
        source_volume_ids: members.into(),
        ..CreateVolumeGroupSnapshotRequest::default()
    };
    let group_snapshot_id = step!("snapshot together", async |agent: &Agent| agent
        .group_controller()
        .create_volume_group_snapshot(together.clone())
        .await)
    .group_snapshot
    .unwrap()
    .group_snapshot_id;
    let forget = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id,
        ..DeleteVolumeGroupSnapshotRequest::default()
    };
    step!("delete the group snapshot", async |agent: &Agent| agent
        .group_controller()
        .delete_volume_group_snapshot(forget.clone())
        .await);
    step!("expand", async |agent: &Agent| agent
        .controller()
        .controller_expand_volume(expand(&id, mebibytes + 32))
        .await);
    let grow = NodeExpandVolumeRequest {
        volume_id: id.clone(),
        volume_path: target.clone(),
        ..NodeExpandVolumeRequest::default()
    };
    step!("expand at the node", async |agent: &Agent| agent
        .node()
        .node_expand_volume(grow.clone())
        .await);
    let modify = ControllerModifyVolumeRequest {
        volume_id: id.clone(),
        mutable_parameters: [("label.tier".to_owned(), "gold".to_owned())].into(),
        ..ControllerModifyVolumeRequest::default()
    };
    step!("modify", async |agent: &Agent| agent
        .controller()
        .controller_modify_volume(modify.clone())
        .await);
    step!("unpublish read-only", async |agent: &Agent| agent
        .node()
        .node_unpublish_volume(unpublish(&id, &read_only_target))
        .await);
    step!("unpublish", async |agent: &Agent| agent
        .node()
        .node_unpublish_volume(unpublish(&id, &target))
        .await);
    step!("unstage", async |agent: &Agent| agent
        .node()
        .node_unstage_volume(unstage(&id, &staging))
        .await);
    step!("detach", async |agent: &Agent| agent
        .controller()
        .controller_unpublish_volume(detach(&id))
        .await);
    // What becomes of the members of a group is a setting of the agent's: here they go with it.
    let ungroup = DeleteVolumeGroupRequest {
        volume_group_id: group.clone(),
        ..DeleteVolumeGroupRequest::default()
    };
    step!("delete the group", async |agent: &Agent| agent
        .groups()
        .delete_volume_group(ungroup.clone())
        .await);
    for id in [&id, &restored] {
        step!("delete", async |agent: &Agent| agent
            .controller()
            .delete_volume(delete(id))
            .await);
    }
    states
}

#[track_caller]
fn assert_same(found: &[(String, State)], wanted: &[(String, State)], why: &str, log: &str) {
    for ((step, found), (_, wanted)) in found.iter().zip(wanted) {
        assert_eq!(found, wanted, "after {step}, killed at {why}\n{log}");
        assert!(found.frozen.is_empty());
    }
    assert_eq!(found.len(), wanted.len());
}

#[tokio::test]
async fn killed_at_each_step_of_each_call_it_ends_where_an_uninterrupted_run_ends() {
    // A raw volume has a step of its own. btrfs has the most: a copy gets an identity of its own.
    let mut wanted = Vec::new();
    for (capability, mebibytes) in [(raw(), 16), (mounted("btrfs"), 256)] {
        let mut subject = Subject::start(None).await;
        let states = life(&mut subject, &capability, mebibytes).await;
        wanted.push((capability, mebibytes, states));
    }
    let mut points = sources::agent_points();
    assert!(points.len() > 30, "{points:?}");
    let others: &[&str] = match Volumes::asked() {
        _ if !is_over_lvm() => &["lvm.", "thick.", "thin."],
        Volumes::Thin => &["directory.", "thick."],
        Volumes::Linear | Volumes::Raid1 => &["directory.", "thin."],
    };
    points.retain(|point| !others.iter().any(|other| point.starts_with(other)));
    // What is not CSI's, of old dialects, or of a node of another name, has tests of its own.
    let is_own = |point: &str| {
        rollback_kills::is_own(point)
            || unstaged_kills::is_own(point)
            || point.starts_with("mount-root.")
            || point.starts_with("adopting.")
    };
    points.retain(|point| !point.starts_with("lvm.pool.") && !is_own(point));
    if is_over_lvm() && std::env::var_os("DRUMLIN_EACH_ALONE").is_none() {
        return killed_at_each_in_few_lives(points.into_iter().collect(), &wanted).await;
    }
    for point in points {
        let mut kills = 0;
        for (capability, mebibytes, wanted) in &wanted {
            let mut subject = Subject::start(Some(&point)).await;
            let states = life(&mut subject, capability, *mebibytes).await;
            kills += subject.kills;
            assert_same(&states, wanted, &point, &subject.agent.log());
            // The lab is slow; there, one life that comes to the point is enough.
            if kills > 0 && is_over_lvm() {
                break;
            }
        }
        assert!(kills > 0, "no call comes to {point}");
    }
}

/// A life: of a volume of this kind, with so many mebibytes, and the state after each call.
type Life = (VolumeCapability, i64, Vec<(String, State)>);

/// The lab is slow: a life is killed at each point that it comes to, and after each kill the call is repeated to the next
/// point. What a repeat does not come to any more is met in another life.
async fn killed_at_each_in_few_lives(mut points: Vec<String>, wanted: &[Life]) {
    while !points.is_empty() {
        let before = points.len();
        for (capability, mebibytes, wanted) in wanted {
            let mut subject = Subject::start_among(points.clone()).await;
            let states = life(&mut subject, capability, *mebibytes).await;
            let why = subject.met.join(", ");
            assert_same(&states, wanted, &why, &subject.agent.log());
            points.clone_from(&subject.armed);
        }
        assert!(points.len() < before, "no call comes to {points:?}");
    }
}

/// A number that differs from run to run and is told when a run fails.
pub(crate) fn seed() -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    u64::from(now.subsec_nanos()) | 1
}

/// How many kills of each test meet a call: `DRUMLIN_KILLS`, else thirty, or eight in the lab, which is slow.
pub(crate) fn times() -> usize {
    let asked = std::env::var("DRUMLIN_KILLS").ok();
    let usual = if is_over_lvm() { 8 } else { 30 };
    asked.map_or(usual, |times| times.parse().unwrap())
}

/// Who dies.
#[derive(Clone, Copy, PartialEq)]
enum Victims {
    Agent,
    AgentAndPrograms,
    Programs,
}

async fn killed_at_random(times: usize, victims: Victims) {
    let capability = mounted("ext4");
    let plain = |mut states: Vec<(String, State)>| {
        // Where a mounted ext4 may not be grown, the node's part of an expansion cannot be had.
        states.retain(|(step, _)| step != "expand at the node");
        states
    };
    let (mut wanted, mut length) = (Vec::new(), Duration::ZERO);
    // The first one finds nothing in any cache and takes longer than those that are to be met.
    for _ in 0..2 {
        let mut undisturbed = Subject::start(None).await;
        let begun = Instant::now();
        wanted = plain(short_life(&mut undisturbed, &capability).await);
        length = begun.elapsed();
    }
    let (mut random, mut kills, mut round) = (seed(), 0, 0);
    while kills < times {
        round += 1;
        assert!(
            round <= times * 5,
            "only {kills} of {round} kills met a call"
        );
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let after = length.mul_f64(f64::from(u32::try_from(random % 1000).unwrap()) / 1000.0);
        let into = Duration::from_millis((random >> 32) % 5);
        let mut subject = Subject::start(None).await;
        let pid = subject.agent.pid();
        let met = Arc::new(AtomicUsize::new(0));
        let programs_met = Arc::clone(&met);
        let killer = tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let programs = match victims {
                Victims::Agent => Vec::new(),
                Victims::AgentAndPrograms => programs_of(pid),
                Victims::Programs => running_programs(pid, into).await,
            };
            let agent = (victims != Victims::Programs).then_some(pid);
            if agent.is_none() {
                programs_met.store(usize::from(!programs.is_empty()), Ordering::Relaxed);
            }
            for pid in agent.into_iter().chain(programs) {
                let pid = nix::unistd::Pid::from_raw(pid);
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        });
        let begun = Instant::now();
        let states = plain(short_life(&mut subject, &capability).await);
        killer.abort();
        let was_met = subject.kills + met.load(Ordering::Relaxed);
        if was_met == 0 {
            length = length.min(match victims {
                // From then on none ran.
                Victims::Programs => after,
                // Undisturbed: where other work made the first ones slow, it tells how long a life takes.
                Victims::Agent | Victims::AgentAndPrograms => begun.elapsed(),
            });
        }
        kills += was_met;
        let why = format!("round {round}, {after:?}");
        assert_same(&states, &wanted, &why, &subject.agent.log());
    }
}

/// The programs that an agent runs, some time `into` them. They run for so little of a life that an instant of it hardly
/// ever meets one, unless the machine is busy.
async fn running_programs(agent: i32, into: Duration) -> Vec<i32> {
    loop {
        if !programs_of(agent).is_empty() {
            tokio::time::sleep(into).await;
            let programs = programs_of(agent);
            if !programs.is_empty() {
                return programs;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The life of a small ext4 volume, quick enough to be lived two hundred times.
async fn short_life(subject: &mut Subject, capability: &VolumeCapability) -> Vec<(String, State)> {
    let mut states = Vec::new();
    let (staging, target) = paths(&subject.agent, "v");
    let new = create("v", 16, capability);
    let id = subject
        .call("create", async |agent: &Agent| {
            agent.controller().create_volume(new.clone()).await
        })
        .await
        .volume
        .unwrap()
        .volume_id;
    let attach = ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(capability.clone()),
        ..ControllerPublishVolumeRequest::default()
    };
    subject
        .call("attach", async |agent: &Agent| {
            agent
                .controller()
                .controller_publish_volume(attach.clone())
                .await
        })
        .await;
    subject
        .call("stage", async |agent: &Agent| {
            agent
                .node()
                .node_stage_volume(stage(&id, &staging, capability))
                .await
        })
        .await;
    subject
        .call("publish", async |agent: &Agent| {
            agent
                .node()
                .node_publish_volume(publish(&id, (&staging, &target), capability))
                .await
        })
        .await;
    let taken = subject
        .call("snapshot", async |agent: &Agent| {
            agent.controller().create_snapshot(snapshot("s", &id)).await
        })
        .await
        .snapshot
        .unwrap();
    let restore = CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken.snapshot_id),
        ..create("r", 32, capability)
    };
    let restored = subject
        .call("restore", async |agent: &Agent| {
            agent.controller().create_volume(restore.clone()).await
        })
        .await
        .volume
        .unwrap()
        .volume_id;
    let forget = DeleteSnapshotRequest {
        snapshot_id: taken.snapshot_id,
        ..DeleteSnapshotRequest::default()
    };
    subject
        .call("delete", async |agent: &Agent| {
            agent.controller().delete_snapshot(forget.clone()).await
        })
        .await;
    subject
        .call("expand", async |agent: &Agent| {
            agent
                .controller()
                .controller_expand_volume(expand(&id, 24))
                .await
        })
        .await;
    states.push(("expand".to_owned(), subject.state().await));
    subject
        .call("unpublish", async |agent: &Agent| {
            agent
                .node()
                .node_unpublish_volume(unpublish(&id, &target))
                .await
        })
        .await;
    subject
        .call("unstage", async |agent: &Agent| {
            agent
                .node()
                .node_unstage_volume(unstage(&id, &staging))
                .await
        })
        .await;
    subject
        .call("detach", async |agent: &Agent| {
            agent
                .controller()
                .controller_unpublish_volume(detach(&id))
                .await
        })
        .await;
    subject
        .call("delete", async |agent: &Agent| {
            agent.controller().delete_volume(delete(&id)).await
        })
        .await;
    states.push(("delete".to_owned(), subject.state().await));
    subject
        .call("delete", async |agent: &Agent| {
            agent.controller().delete_volume(delete(&restored)).await
        })
        .await;
    states.push(("end".to_owned(), subject.state().await));
    states
}

#[tokio::test]
async fn killed_at_random_instants_it_ends_where_an_uninterrupted_run_ends() {
    killed_at_random(times(), Victims::Agent).await;
}

#[tokio::test]
async fn killed_with_its_programs_it_ends_there_too() {
    killed_at_random(times(), Victims::AgentAndPrograms).await;
}

/// A directory needs hardly any programs.
#[cfg(feature = "lab")]
#[tokio::test]
async fn one_whose_programs_are_killed_ends_there_too() {
    killed_at_random(times(), Victims::Programs).await;
}
