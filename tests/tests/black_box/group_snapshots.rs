//! `csi.v1.GroupController`: what its callers get, and when they get nothing.

use std::time::Instant;

use drumlin_proto::csi::v1::{
    CreateVolumeGroupSnapshotRequest, CreateVolumeRequest, DeleteVolumeGroupSnapshotRequest,
    GetVolumeGroupSnapshotRequest, GroupControllerGetCapabilitiesRequest, ListSnapshotsRequest,
    Snapshot, VolumeGroupSnapshot,
    group_controller_service_capability::{Type, rpc},
};
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE, is_over_lvm},
    does_not_apply,
    requests::{
        MIB, create, create_group_snapshot, delete, delete_group_snapshot, delete_snapshot,
        from_snapshot, mounted, raw,
    },
    state::State,
    storage::{Kind, Scratch},
};
use tonic::Code;

use crate::helpers::{get, mount, ok, put, refused, unbind_all, unmount, volume};

pub(crate) fn together(name: &str, volumes: &[String]) -> CreateVolumeGroupSnapshotRequest {
    create_group_snapshot(name, volumes.to_vec())
}

/// Takes a group snapshot, and asks again as callers do where a machine that is busy could not hold all members in time.
pub(crate) async fn take(agent: &Agent, name: &str, volumes: &[String]) -> VolumeGroupSnapshot {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut groups = agent.group_controller();
        let answer = groups.create_volume_group_snapshot(together(name, volumes));
        match answer.await {
            Err(status)
                if status.code() == Code::Aborted
                    && status.message().contains("freeze barrier exceeded")
                    && Instant::now() < deadline => {}
            answer => return ok(answer).group_snapshot.unwrap(),
        }
    }
}

fn ids(taken: &VolumeGroupSnapshot) -> Vec<String> {
    let members = taken.snapshots.iter();
    members.map(|member| member.snapshot_id.clone()).collect()
}

fn look(taken: &VolumeGroupSnapshot, members: &[String]) -> GetVolumeGroupSnapshotRequest {
    GetVolumeGroupSnapshotRequest {
        group_snapshot_id: taken.group_snapshot_id.clone(),
        snapshot_ids: members.to_vec(),
        ..GetVolumeGroupSnapshotRequest::default()
    }
}

async fn listed(agent: &Agent) -> Vec<Snapshot> {
    let request = ListSnapshotsRequest::default();
    let list = ok(agent.controller().list_snapshots(request).await);
    let entries = list.entries.into_iter();
    entries.map(|entry| entry.snapshot.unwrap()).collect()
}

/// An agent whose images can share blocks.
pub(crate) async fn with_reflinks(mebibytes: u64) -> Agent {
    if is_over_lvm() {
        return Agent::start().await;
    }
    on(Kind::Xfs, mebibytes, "").await
}

pub(crate) async fn on(storage: Kind, mebibytes: u64, more: &str) -> Agent {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", storage, mebibytes);
    let config = format!(
        "classes: [{{name: default, directory: {{path: {}{more}}}}}]\n",
        images.display()
    );
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

#[tokio::test]
async fn the_same_volumes_get_the_same_answer_and_others_are_a_conflict() {
    let mut agent = with_reflinks(1 << 10).await;
    let a = volume(&agent, "a", 16, &raw()).await;
    let b = volume(&agent, "b", 32, &raw()).await;
    let c = volume(&agent, "c", 16, &raw()).await;
    let both = [a.clone(), b.clone()];
    let taken = take(&agent, "groupsnapshot-1", &both).await;
    assert!(taken.ready_to_use);
    assert_eq!(taken.snapshots.len(), 2);
    for member in &taken.snapshots {
        let size = if member.source_volume_id == a { 16 } else { 32 };
        assert_eq!(member.size_bytes, size * MIB);
        assert_eq!(member.creation_time, taken.creation_time);
        assert_eq!(member.group_snapshot_id, taken.group_snapshot_id);
        assert!(member.ready_to_use);
    }
    agent.kill();
    agent.restart().await;
    let other_order = [b.clone(), a.clone(), b.clone()];
    for repeat in [&both[..], &both[..], &other_order[..]] {
        assert_eq!(take(&agent, "groupsnapshot-1", repeat).await, taken);
    }
    for others in [vec![a.clone()], vec![a.clone(), b.clone(), c]] {
        let request = together("groupsnapshot-1", &others);
        let answer = agent
            .group_controller()
            .create_volume_group_snapshot(request)
            .await;
        refused(answer, Code::AlreadyExists);
    }
    let mut seen = listed(&agent).await;
    let mut members = taken.snapshots.clone();
    seen.sort_by(|a, b| a.snapshot_id.cmp(&b.snapshot_id));
    members.sort_by(|a, b| a.snapshot_id.cmp(&b.snapshot_id));
    assert_eq!(seen, members, "ListSnapshots shows them as they were told");
}

#[tokio::test]
async fn members_go_with_their_group_snapshot_and_not_alone() {
    let agent = with_reflinks(1 << 10).await;
    let a = volume(&agent, "a", 16, &raw()).await;
    let b = volume(&agent, "b", 16, &raw()).await;
    let taken = take(&agent, "g", &[a.clone(), b.clone()]).await;
    let alone = delete_snapshot(&taken.snapshots[0].snapshot_id);
    let answer = agent.controller().delete_snapshot(alone).await;
    let message = refused(answer, Code::InvalidArgument);
    assert!(message.contains(&taken.group_snapshot_id), "{message}");
    let mut groups = agent.group_controller();
    let found = ok(groups
        .get_volume_group_snapshot(look(&taken, &ids(&taken)))
        .await);
    assert_eq!(found.group_snapshot.unwrap(), taken);
    for members in [
        vec![],
        ids(&taken)[..1].to_vec(),
        vec![ids(&taken)[0].clone(), a.clone()],
    ] {
        let answer = groups
            .get_volume_group_snapshot(look(&taken, &members))
            .await;
        refused(answer, Code::InvalidArgument);
        let request = DeleteVolumeGroupSnapshotRequest {
            snapshot_ids: members,
            ..delete_group_snapshot(&taken)
        };
        let answer = groups.delete_volume_group_snapshot(request).await;
        refused(answer, Code::InvalidArgument);
    }
    assert_eq!(listed(&agent).await.len(), 2);
    for _ in 0..2 {
        ok(groups
            .delete_volume_group_snapshot(delete_group_snapshot(&taken))
            .await);
    }
    assert_eq!(listed(&agent).await, []);
    let answer = groups.get_volume_group_snapshot(look(&taken, &[])).await;
    refused(answer, Code::NotFound);
    for id in [a, b] {
        ok(agent.controller().delete_volume(delete(&id)).await);
    }
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_refused_by_name() {
    let agent = with_reflinks(1 << 10).await;
    let a = volume(&agent, "a", 16, &raw()).await;
    let key = a.rsplit('/').next().unwrap();
    let cases = [
        ("", vec![a.clone()], Code::InvalidArgument, "name "),
        ("g", vec![], Code::InvalidArgument, "source_volume_ids"),
        (
            "g",
            vec![String::new()],
            Code::InvalidArgument,
            "source_volume_ids[0]",
        ),
        (
            "g",
            vec![a.clone(), "nonsense".to_owned()],
            Code::NotFound,
            "nonsense",
        ),
        (
            "g",
            vec![
                a.clone(),
                a.replace(key, "00000000-0000-5000-8000-00000000000a"),
            ],
            Code::NotFound,
            "00000000-0000-5000-8000-00000000000a",
        ),
        (
            "g",
            vec![a.clone(), a.replace("node-a", "node-b")],
            Code::FailedPrecondition,
            "node-b",
        ),
    ];
    let before = State::of(agent.scratch.path());
    for (name, sources, code, part) in cases {
        let answer = agent
            .group_controller()
            .create_volume_group_snapshot(together(name, &sources))
            .await;
        let message = refused(answer, code);
        assert!(message.contains(part), "{message}");
    }
    let request = CreateVolumeGroupSnapshotRequest {
        parameters: [("flavour".to_owned(), "x".to_owned())].into(),
        ..together("g", &[a])
    };
    let answer = agent
        .group_controller()
        .create_volume_group_snapshot(request)
        .await;
    assert!(refused(answer, Code::InvalidArgument).contains("parameters.flavour"));
    assert_eq!(State::of(agent.scratch.path()), before);
}

#[tokio::test]
async fn hundreds_of_volumes_are_taken_at_once() {
    let agent = with_reflinks(2 << 10).await;
    let count = if is_over_lvm() { 40 } else { 600 };
    let mut ids = Vec::new();
    for number in 0..count {
        ids.push(volume(&agent, &format!("v{number}"), 1, &raw()).await);
    }
    let taken = take(&agent, "g", &ids).await;
    assert_eq!(taken.snapshots.len(), count);
    assert_eq!(take(&agent, "g", &ids).await, taken);
    let mut groups = agent.group_controller();
    ok(groups
        .delete_volume_group_snapshot(delete_group_snapshot(&taken))
        .await);
    assert_eq!(listed(&agent).await, []);
}

#[tokio::test]
async fn it_says_that_it_takes_group_snapshots() {
    let agent = Agent::start().await;
    let request = GroupControllerGetCapabilitiesRequest::default();
    let answer = agent
        .group_controller()
        .group_controller_get_capabilities(request)
        .await;
    let capabilities = ok(answer).capabilities.into_iter();
    let all: Vec<_> = capabilities.map(|one| one.r#type.unwrap()).collect();
    let wanted = rpc::Type::CreateDeleteGetVolumeGroupSnapshot;
    assert!(
        matches!(&all[..], [Type::Rpc(one)] if one.r#type() == wanted),
        "{all:?}"
    );
}

#[tokio::test]
async fn each_member_is_restored_with_its_own_bytes() {
    let agent = with_reflinks(4 << 10).await;
    let mut volumes = Vec::new();
    for (name, fs_type, mebibytes) in [("e", "ext4", 32), ("x", "xfs", 300), ("b", "btrfs", 256)] {
        let capability = mounted(fs_type);
        let id = volume(&agent, name, mebibytes, &capability).await;
        let at = mount(&agent, name, &id, &capability).await;
        put(&at.1, "file", format!("{name} before").as_bytes());
        volumes.push((name, capability, mebibytes, id, at));
    }
    let sources: Vec<String> = volumes.iter().map(|(.., id, _)| id.clone()).collect();
    let taken = take(&agent, "g", &sources).await;
    for (name, capability, mebibytes, id, at) in &volumes {
        put(&at.1, "file", format!("{name} after!").as_bytes());
        let mut members = taken.snapshots.iter();
        let member = members.find(|member| member.source_volume_id == *id);
        let restore = CreateVolumeRequest {
            volume_content_source: from_snapshot(&member.unwrap().snapshot_id),
            ..create(&format!("restored-{name}"), *mebibytes, capability)
        };
        let restored = ok(agent.controller().create_volume(restore).await);
        let restored = restored.volume.unwrap().volume_id;
        let place = mount(&agent, &format!("restored-{name}"), &restored, capability).await;
        assert_eq!(get(&place.1, "file"), format!("{name} before").as_bytes());
        assert_eq!(get(&at.1, "file"), format!("{name} after!").as_bytes());
        unmount(&agent, &restored, &place).await;
    }
    unbind_all(&agent, &taken).await;
    for (.., id, at) in &volumes {
        unmount(&agent, id, at).await;
    }
}

#[tokio::test]
async fn a_directory_refuses_what_it_cannot_hold_and_makes_nothing() {
    if is_over_lvm() {
        return does_not_apply!("it is about directories");
    }
    let agent = on(Kind::Ext4, 1 << 10, "").await;
    let a = volume(&agent, "a", 32, &mounted("ext4")).await;
    let b = volume(&agent, "b", 32, &mounted("ext4")).await;
    let both = [a.clone(), b.clone()];
    // Nobody writes: there is time to copy.
    let unused = take(&agent, "unused", &both).await;
    let at = mount(&agent, "a", &a, &mounted("ext4")).await;
    let before = State::of(agent.scratch.path());
    let answer = agent
        .group_controller()
        .create_volume_group_snapshot(together("g", &both))
        .await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("longestFreeze"), "{message}");
    assert_eq!(State::of(agent.scratch.path()), before);
    assert_eq!(take(&agent, "unused", &both).await, unused);
    drop(at);

    let patient = on(Kind::Ext4, 1 << 10, ", longestFreeze: 30").await;
    let a = volume(&patient, "a", 32, &mounted("ext4")).await;
    let raw_one = volume(&patient, "raw", 32, &raw()).await;
    let at = mount(&patient, "a", &a, &mounted("ext4")).await;
    put(&at.1, "file", b"before");
    let both = [a.clone(), raw_one.clone()];
    assert!(take(&patient, "g", &both).await.ready_to_use);
    // A raw volume that is used, with reflinks or without.
    mount(&patient, "raw", &raw_one, &raw()).await;
    let before = State::of(patient.scratch.path());
    let answer = patient
        .group_controller()
        .create_volume_group_snapshot(together("h", &both))
        .await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains("raw block device"), "{message}");
    assert_eq!(State::of(patient.scratch.path()), before);
}
