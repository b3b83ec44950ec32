//! Group snapshots beside other calls, and with members that fail: one moment of all of them, or nothing.

use std::collections::BTreeSet;

use drumlin_proto::csi::v1::{
    CreateVolumeGroupSnapshotRequest, ListSnapshotsRequest, VolumeGroupSnapshot,
};
use drumlin_tests::{
    agent::{Agent, Options, Volumes, is_over_lvm, snapshots_bind_their_volume},
    does_not_apply,
    programs::run,
    requests::{
        create, delete, delete_group_snapshot, delete_snapshot, expand, mounted, raw, snapshot,
    },
    state::State,
    storage::lvm,
};
use nix::sys::signal::Signal;
use tonic::{Code, Status};

use crate::{
    group_consistency::Load,
    group_snapshots::{take, together, with_reflinks},
    helpers::{bytes_of, get, mount, ok, put, refused, text, unmount, volume},
    thaw_watchdog::{load_until, until_stopped},
};

async fn ask(
    agent: &Agent,
    request: CreateVolumeGroupSnapshotRequest,
) -> Result<VolumeGroupSnapshot, Status> {
    let mut groups = agent.group_controller();
    let answer = groups.create_volume_group_snapshot(request).await?;
    Ok(answer.into_inner().group_snapshot.unwrap())
}

async fn listed(agent: &Agent) -> usize {
    let request = ListSnapshotsRequest::default();
    let list = ok(agent.controller().list_snapshots(request).await);
    list.entries.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_that_overlap_are_taken_one_after_the_other_or_refused() {
    let load = Load::new().await;
    let all = load.ids();
    let sets = [
        all.clone(),
        all[1..].to_vec(),
        all[..3].to_vec(),
        all[..2].to_vec(),
    ];
    let calls = sets.iter().enumerate().map(|(number, set)| {
        let request = together(&format!("g{number}"), set);
        ask(&load.agent, request)
    });
    let answers = futures::future::join_all(calls).await;
    let mut made = 0;
    for (answer, set) in answers.into_iter().zip(&sets) {
        match answer {
            Ok(taken) => {
                assert_eq!(taken.snapshots.len(), set.len());
                made += set.len();
                if set.len() == all.len() {
                    load.judge_taken(&taken).unwrap();
                }
            }
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    }
    assert!(made > 0);
    assert_eq!(listed(&load.agent).await, made);
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_that_do_not_overlap_are_taken_at_once() {
    let agent = with_reflinks(2 << 10).await;
    let mut sets = Vec::new();
    for set in 0..4 {
        let mut ids = Vec::new();
        for member in 0..3 {
            let name = format!("v{set}{member}");
            let id = volume(&agent, &name, 32, &mounted("ext4")).await;
            let at = mount(&agent, &name, &id, &mounted("ext4")).await;
            ids.push((id, at));
        }
        sets.push(ids);
    }
    for round in 0..3 {
        let calls = sets.iter().enumerate().map(|(number, set)| {
            let ids: Vec<String> = set.iter().map(|(id, _)| id.clone()).collect();
            let (agent, name) = (&agent, format!("g{round}-{number}"));
            async move { take(agent, &name, &ids).await }
        });
        let taken: Vec<VolumeGroupSnapshot> = futures::future::join_all(calls).await;
        assert_eq!(listed(&agent).await, 12);
        let mut clients: Vec<_> = taken.iter().map(|_| agent.group_controller()).collect();
        let requests = clients.iter_mut().zip(&taken);
        let calls = requests.map(|(groups, taken)| {
            groups.delete_volume_group_snapshot(delete_group_snapshot(taken))
        });
        for answer in futures::future::join_all(calls).await {
            ok(answer);
        }
    }
    for (id, at) in sets.iter().flatten() {
        unmount(&agent, id, at).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_changed_at_the_same_time_are_all_there_or_all_refused() {
    let agent = with_reflinks(2 << 10).await;
    for round in 0..6 {
        let names = ["deleted", "grown", "unpublished"].map(|name| format!("{name}{round}"));
        let mut ids = Vec::new();
        for name in &names {
            ids.push(volume(&agent, name, 32, &mounted("ext4")).await);
        }
        let at = mount(&agent, &names[2], &ids[2], &mounted("ext4")).await;
        let (mut deleting, mut growing) = (agent.controller(), agent.controller());
        let (taken, deleted, grown, ()) = tokio::join!(
            ask(&agent, together(&format!("g{round}"), &ids)),
            deleting.delete_volume(delete(&ids[0])),
            growing.controller_expand_volume(expand(&ids[1], 48)),
            async {
                // It is held for a moment, or holds up the other.
                loop {
                    let mut node = agent.node();
                    let request = drumlin_tests::requests::unpublish(&ids[2], &at.1);
                    match node.node_unpublish_volume(request).await {
                        Err(status) if status.code() == Code::Aborted => {}
                        answer => {
                            ok(answer);
                            break;
                        }
                    }
                }
            },
        );
        let outcome = taken.as_ref().map_err(Status::code);
        match &taken {
            Ok(taken) => assert_eq!(taken.snapshots.len(), 3),
            Err(status) => assert!(
                matches!(status.code(), Code::Aborted | Code::NotFound),
                "{status}"
            ),
        }
        if let Err(status) = deleted {
            let bound = status.code() == Code::FailedPrecondition && snapshots_bind_their_volume();
            assert!(
                status.code() == Code::Aborted || bound,
                "{status} {outcome:?}"
            );
        }
        if let Err(status) = grown {
            assert_eq!(status.code(), Code::Aborted, "{status} {outcome:?}");
        }
        assert_eq!(listed(&agent).await, if taken.is_ok() { 3 } else { 0 });
        if let Ok(taken) = taken {
            let mut groups = agent.group_controller();
            ok(groups
                .delete_volume_group_snapshot(delete_group_snapshot(&taken))
                .await);
        }
        ok(agent
            .node()
            .node_unstage_volume(drumlin_tests::requests::unstage(&ids[2], &at.0))
            .await);
    }
    assert_eq!(State::of(agent.scratch.path()).frozen, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_somebody_else_has_frozen_is_named_and_nothing_is_left() {
    if is_over_lvm() {
        return does_not_apply!("There a device is held, frozen or not");
    }
    let load = Load::new().await;
    let frozen = load.used(1);
    run("fsfreeze", &["--freeze", &frozen.1]);
    let before = State::of(load.agent.scratch.path());
    let request = together("g", &load.ids());
    let answer = load
        .agent
        .group_controller()
        .create_volume_group_snapshot(request)
        .await;
    let message = refused(answer, Code::Aborted);
    assert!(
        message.contains(&frozen.0) && message.contains("already frozen"),
        "{message}"
    );
    let after = State::of(load.agent.scratch.path());
    assert_eq!(after, before, "it is frozen still, by the other one");
    run("fsfreeze", &["--unfreeze", &frozen.1]);
    load.writers.iter().for_each(|writer| writer.goes_on(3));
    load.judge_taken(&take(&load.agent, "g", &load.ids()).await)
        .unwrap();
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_fails_in_the_window_is_named_and_nothing_is_left() {
    if !is_over_lvm() || Volumes::asked() != Volumes::Thin {
        return does_not_apply!("it is about copies in a thin pool");
    }
    let load = load_until("quiesce.armed", "stop").await;
    let group = load.agent.scratch.group().unwrap();
    let before = State::of(load.agent.scratch.path());
    let (mut groups, request) = (load.agent.group_controller(), together("g", &load.ids()));
    let mut call = tokio::spawn(async move { groups.create_volume_group_snapshot(request).await });
    until_stopped(&load.agent, &mut call).await;
    // LVM waits for the lock, so it is asked without one. What is forgotten in the pool has the number of a copy.
    let ids = run(
        "lvs",
        &[
            "--nolocking",
            "--noheadings",
            "-o",
            "lv_name,thin_id",
            &group,
        ],
    );
    let mut of_copies = ids.lines().filter(|line| line.trim().starts_with("dl-s-"));
    let number = of_copies
        .next_back()
        .unwrap()
        .split_whitespace()
        .last()
        .unwrap();
    let pool = format!("{}-pool-tpool", group.replace('-', "--"));
    run(
        "dmsetup",
        &["message", &pool, "0", &format!("create_thin {number}")],
    );
    load.agent.signal(Signal::SIGCONT);
    let status = call.await.unwrap().unwrap_err();
    assert!(
        status.message().contains("volume node-a/default/"),
        "{status}"
    );
    assert_eq!(State::of(load.agent.scratch.path()), before);
    load.writers.iter().for_each(|writer| writer.goes_on(3));
    load.judge_taken(&take(&load.agent, "g", &load.ids()).await)
        .unwrap();
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_somebody_removes_is_told_and_nothing_is_left() {
    if !is_over_lvm() {
        return does_not_apply!("it removes a logical volume");
    }
    let load = load_until("create-group-snapshot.prepared", "stop").await;
    let group = load.agent.scratch.group().unwrap();
    let (mut groups, request) = (load.agent.group_controller(), together("g", &load.ids()));
    let mut call = tokio::spawn(async move { groups.create_volume_group_snapshot(request).await });
    until_stopped(&load.agent, &mut call).await;
    let names = lvm("lvs", &["--noheadings", "-o", "lv_name", &group]);
    let copy = names.lines().find(|line| line.trim().starts_with("dl-s-"));
    lvm(
        "lvremove",
        &["-y", &format!("{group}/{}", copy.unwrap().trim())],
    );
    load.agent.signal(Signal::SIGCONT);
    let message = refused(call.await.unwrap(), Code::Aborted);
    assert!(message.contains("another process is changing"), "{message}");
    assert_eq!(listed(&load.agent).await, 0);
    load.judge_taken(&take(&load.agent, "g", &load.ids()).await)
        .unwrap();
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_several_pools_and_groups_are_of_one_point_in_time() {
    if !is_over_lvm() {
        return does_not_apply!("a directory has no pools");
    }
    let scratch = drumlin_tests::storage::Scratch::new();
    let first = scratch.volume_group(512);
    let disk = scratch.disk("disk-c", 1 << 10);
    let second = scratch.volume_group_over(&[disk]);
    for pool in [
        format!("{first}/one"),
        format!("{first}/two"),
        format!("{second}/pool"),
    ] {
        lvm("lvcreate", &["-L", "256M", "-T", &pool]);
    }
    let config = format!(
        "classes:\n- {{name: one, default: true, thin: {{volumeGroup: {first}, pool: one, overcommit: 20}}}}\n- {{name: two, thin: {{volumeGroup: {first}, pool: two, overcommit: 20}}}}\n- {{name: three, thin: {{volumeGroup: {second}, pool: pool, overcommit: 20}}}}\n- {{name: thick, thick: {{volumeGroup: {second}}}}}\n"
    );
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    let mut agent = Agent::with(scratch, options).await;
    let mut ids = Vec::new();
    for class in ["one", "two", "three", "thick"] {
        let mut request = create(class, 16, &raw());
        request.parameters = [("class".to_owned(), class.to_owned())].into();
        let made = ok(agent.controller().create_volume(request).await);
        ids.push(made.volume.unwrap().volume_id);
    }
    let load = Load::over_raw(agent, &ids).await;
    for number in 0..3 {
        let taken = take(&load.agent, &format!("g{number}"), &ids).await;
        load.judge_taken(&taken).unwrap();
        let classes: BTreeSet<&str> = taken
            .snapshots
            .iter()
            .map(|member| member.snapshot_id.split('/').nth(1).unwrap())
            .collect();
        assert_eq!(classes.len(), 4);
        let mut groups = load.agent.group_controller();
        ok(groups
            .delete_volume_group_snapshot(delete_group_snapshot(&taken))
            .await);
    }
    agent = load.end().await;
    drop(agent);
}

#[tokio::test]
async fn a_snapshot_that_somebody_has_mounted_is_not_deleted() {
    let agent = with_reflinks(1 << 10).await;
    let id = volume(&agent, "v", 32, &mounted("ext4")).await;
    let at = mount(&agent, "v", &id, &mounted("ext4")).await;
    put(&at.1, "file", b"looked at");
    let taken = take(&agent, "g", std::slice::from_ref(&id)).await;
    let alone = agent.controller().create_snapshot(snapshot("s", &id)).await;
    let alone = ok(alone).snapshot.unwrap().snapshot_id;
    let delete_alone = || delete_snapshot(&alone);
    let member = taken.snapshots[0].snapshot_id.clone();
    for snapshot in [&member, &alone] {
        let (device, place) = (
            text(bytes_of(&agent, snapshot)),
            text(agent.scratch.directory("looked-at")),
        );
        run("mount", &["-o", "ro", &device, &place]);
        assert_eq!(get(&place, "file"), b"looked at");
        let answer = if *snapshot == member {
            let mut groups = agent.group_controller();
            let deleted = groups
                .delete_volume_group_snapshot(delete_group_snapshot(&taken))
                .await;
            refused(deleted, Code::FailedPrecondition)
        } else {
            let deleted = agent.controller().delete_snapshot(delete_alone()).await;
            refused(deleted, Code::FailedPrecondition)
        };
        assert!(answer.contains(&place), "{answer}");
        assert_eq!(get(&place, "file"), b"looked at");
        run("umount", &[&place]);
    }
    assert_eq!(listed(&agent).await, 2, "nothing was deleted");
    let mut groups = agent.group_controller();
    ok(groups
        .delete_volume_group_snapshot(delete_group_snapshot(&taken))
        .await);
    ok(agent.controller().delete_snapshot(delete_alone()).await);
    assert_eq!(listed(&agent).await, 0);
    unmount(&agent, &id, &at).await;
}
