//! What CSI 1 asks of snapshots and group snapshots, call by call, where no other test makes the call.

use std::{collections::BTreeSet, fs};

use drumlin_proto::csi::v1::{
    CreateVolumeRequest, GetSnapshotRequest, GetVolumeGroupSnapshotRequest, ListSnapshotsRequest,
    Snapshot,
};
use drumlin_tests::{
    agent::{Agent, Options},
    requests::{MIB, create, delete, delete_snapshot, from_snapshot, mounted, raw, snapshot},
};
use tonic::Code;

use crate::{
    group_snapshots::{take, together, with_reflinks},
    helpers::{bytes_of, get, mount, ok, put, refused, unmount, volume},
};

async fn snapshots_of(agent: &Agent) -> Vec<Snapshot> {
    let request = ListSnapshotsRequest::default();
    let list = ok(agent.controller().list_snapshots(request).await);
    let entries = list.entries.into_iter();
    entries.map(|entry| entry.snapshot.unwrap()).collect()
}

#[tokio::test]
async fn a_snapshot_of_no_group_is_listed_as_it_was_taken_and_deleted_alone() {
    let mut agent = Agent::start().await;
    let id = volume(&agent, "v", 4, &raw()).await;
    let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
    let taken = ok(taken).snapshot.unwrap();
    assert!(!taken.snapshot_id.is_empty() && taken.creation_time.is_some());
    assert_eq!(
        (taken.source_volume_id.as_str(), taken.size_bytes),
        (id.as_str(), 4 * MIB)
    );
    assert!(taken.ready_to_use);
    assert_eq!(taken.group_snapshot_id, "");
    let get = async |agent: &Agent| {
        let request = GetSnapshotRequest {
            snapshot_id: taken.snapshot_id.clone(),
            ..GetSnapshotRequest::default()
        };
        agent.controller().get_snapshot(request).await
    };
    for _ in 0..2 {
        assert_eq!(snapshots_of(&agent).await, [taken.clone()]);
        assert_eq!(ok(get(&agent).await).snapshot, Some(taken.clone()));
        agent.kill();
        agent.restart().await;
    }
    for _ in 0..2 {
        let request = delete_snapshot(&taken.snapshot_id);
        ok(agent.controller().delete_snapshot(request).await);
    }
    assert_eq!(snapshots_of(&agent).await, []);
    refused(get(&agent).await, Code::NotFound);
}

#[tokio::test]
async fn snapshots_come_in_pages_and_a_token_that_no_list_gave_out_is_aborted() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 1, &raw()).await;
    for number in 0..5 {
        let request = snapshot(&format!("s{number}"), &id);
        ok(agent.controller().create_snapshot(request).await);
    }
    let list = async |max_entries: i32, token: &str| {
        let request = ListSnapshotsRequest {
            max_entries,
            starting_token: token.to_owned(),
            ..ListSnapshotsRequest::default()
        };
        agent.controller().list_snapshots(request).await
    };
    let (mut seen, mut token, mut sizes) = (BTreeSet::new(), String::new(), Vec::new());
    loop {
        let page = ok(list(2, &token).await);
        sizes.push(page.entries.len());
        let entries = page.entries.into_iter();
        seen.extend(entries.map(|entry| entry.snapshot.unwrap().snapshot_id));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!((sizes, seen.len()), (vec![2, 2, 1], 5));
    let all = ok(list(0, "").await);
    assert_eq!((all.entries.len(), all.next_token.as_str()), (5, ""));
    for wrong in ["nonsense", "after:", "3"] {
        refused(list(0, wrong).await, Code::Aborted);
    }
    refused(list(-1, "").await, Code::InvalidArgument);
}

#[tokio::test]
async fn snapshots_serve_after_their_volume_was_deleted() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    put(&at.1, "file", b"precious");
    unmount(&agent, &id, &at).await;
    let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
    let taken = ok(taken).snapshot.unwrap();
    ok(agent.controller().delete_volume(delete(&id)).await);
    assert_eq!(snapshots_of(&agent).await, [taken.clone()]);
    let request = CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken.snapshot_id),
        ..create("restored", 32, &plain)
    };
    let restored = ok(agent.controller().create_volume(request).await);
    let restored = restored.volume.unwrap().volume_id;
    let at = mount(&agent, "restored", &restored, &plain).await;
    assert_eq!(get(&at.1, "file"), b"precious");
    unmount(&agent, &restored, &at).await;
}

#[tokio::test]
async fn a_snapshot_that_was_not_cut_is_not_listed() {
    let mut agent = Agent::start().await;
    let id = volume(&agent, "v", 4, &raw()).await;
    for point in [
        "directory.create.begun",
        "directory.create.image",
        "directory.create.filled",
    ] {
        agent.kill();
        let options = Options::default().killed_at(point);
        agent.restart_with(options).await;
        let answer = agent.controller().create_snapshot(snapshot("s", &id)).await;
        answer.unwrap_err();
        agent.wait_until_killed().await;
        agent.restart_with(Options::default()).await;
        assert_eq!(snapshots_of(&agent).await, [], "{point}");
    }
    let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
    let taken = ok(taken).snapshot.unwrap();
    assert_eq!(snapshots_of(&agent).await, [taken]);
}

#[tokio::test]
async fn a_group_snapshot_that_lost_a_member_is_not_ready() {
    let agent = with_reflinks(1 << 10).await;
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        ids.push(volume(&agent, name, 16, &raw()).await);
    }
    let taken = take(&agent, "g", &ids).await;
    assert!(taken.ready_to_use);
    let lost = taken.snapshots[0].snapshot_id.clone();
    fs::remove_file(bytes_of(&agent, &lost)).unwrap();
    let members = taken.snapshots.iter();
    let request = GetVolumeGroupSnapshotRequest {
        group_snapshot_id: taken.group_snapshot_id.clone(),
        snapshot_ids: members.map(|member| member.snapshot_id.clone()).collect(),
        ..GetVolumeGroupSnapshotRequest::default()
    };
    let mut groups = agent.group_controller();
    let found = ok(groups.get_volume_group_snapshot(request).await);
    let again = ok(groups
        .create_volume_group_snapshot(together("g", &ids))
        .await);
    for found in [found.group_snapshot, again.group_snapshot] {
        let found = found.unwrap();
        assert!(!found.ready_to_use);
        assert_eq!(found.snapshots.len(), 2);
        for member in found.snapshots {
            assert_eq!(member.ready_to_use, member.snapshot_id != lost);
        }
    }
    // One that is not ready is found alone, too.
    let request = GetSnapshotRequest {
        snapshot_id: lost,
        ..GetSnapshotRequest::default()
    };
    let alone = ok(agent.controller().get_snapshot(request).await);
    assert!(!alone.snapshot.unwrap().ready_to_use);
}

#[tokio::test]
async fn group_snapshots_of_other_names_have_other_ids() {
    let agent = with_reflinks(1 << 10).await;
    let ids = [volume(&agent, "v", 16, &raw()).await];
    let (mut groups, mut members) = (BTreeSet::new(), BTreeSet::new());
    for name in ["g", "h", "G", "g "] {
        let taken = take(&agent, name, &ids).await;
        assert!(groups.insert(taken.group_snapshot_id.clone()), "{taken:?}");
        for member in taken.snapshots {
            assert_eq!(member.group_snapshot_id, taken.group_snapshot_id);
            assert!(members.insert(member.snapshot_id));
        }
    }
    assert_eq!((groups.len(), members.len()), (4, 4));
}
