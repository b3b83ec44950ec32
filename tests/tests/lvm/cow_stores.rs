//! Going back to a snapshot writes to its volume, which every other snapshot of that has to keep.

use std::{fs::File, os::unix::fs::FileExt};

use drumlin_proto::drumlin::v1::RollbackVolumeGroupSnapshotRequest;
use drumlin_tests::{
    agent::{Agent, Volumes},
    does_not_apply,
    requests::{delete_snapshot, raw, snapshot},
};
use tonic::Code;

use crate::{
    group_snapshots::take,
    groups::thick,
    helpers::{mount, ok, refused, unmount, volume},
};

const MIB: usize = 1 << 20;

/// Writes so many mebibytes at a place.
async fn write(agent: &Agent, id: &str, byte: u8, mebibytes: usize, at: u64) {
    let place = mount(agent, "v", id, &raw()).await;
    let device = File::options().write(true).open(&place.1).unwrap();
    let bytes = vec![byte; mebibytes * MIB];
    device.write_all_at(&bytes, at << 20).unwrap();
    device.sync_all().unwrap();
    drop(device);
    unmount(agent, id, &place).await;
}

async fn read(agent: &Agent, id: &str, at: u64) -> u8 {
    let place = mount(agent, "v", id, &raw()).await;
    let mut bytes = [9; 4096];
    let device = File::open(&place.1).unwrap();
    device.read_exact_at(&mut bytes, at << 20).unwrap();
    drop(device);
    unmount(agent, id, &place).await;
    bytes[0]
}

#[tokio::test]
async fn a_rollback_that_would_fill_the_store_of_another_snapshot_is_refused() {
    if Volumes::asked() != Volumes::Thin {
        return does_not_apply!("it asks for its volumes itself");
    }
    let agent = thick(1 << 10, "snapshotSize: 25%").await;
    let id = volume(&agent, "v", 64, &raw()).await;
    let taken = take(&agent, "g", &[id.clone()]).await;
    write(&agent, &id, 1, 6, 0).await;
    let other = agent
        .controller()
        .create_snapshot(snapshot("other", &id))
        .await;
    let other = ok(other).snapshot.unwrap().snapshot_id;
    write(&agent, &id, 2, 6, 32).await;
    let back = RollbackVolumeGroupSnapshotRequest {
        name: "back".to_owned(),
        group_snapshot_id: taken.group_snapshot_id.clone(),
        discard: false,
    };
    let answer = agent
        .own()
        .rollback_volume_group_snapshot(back.clone())
        .await;
    let why = refused(answer, Code::ResourceExhausted);
    let key = other.rsplit('/').next().unwrap();
    assert!(why.contains(key), "{why}");
    assert_eq!(read(&agent, &id, 0).await, 1);
    assert_eq!(read(&agent, &id, 32).await, 2);
    let forget = delete_snapshot(&other);
    ok(agent.controller().delete_snapshot(forget).await);
    let kept = ok(agent.own().rollback_volume_group_snapshot(back).await);
    assert!(kept.kept.unwrap().ready_to_use);
    assert_eq!(read(&agent, &id, 0).await, 0);
    assert_eq!(read(&agent, &id, 32).await, 0);
}
