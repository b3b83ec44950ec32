//! Calls that arrive while the same call runs: each is answered as if it had come alone, or ABORTED and may be repeated.

use std::{
    fmt::Debug,
    fs,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{
    ControllerModifyVolumeRequest, ListSnapshotsRequest, ListVolumesRequest,
};
use drumlin_tests::{
    agent::{Agent, PATIENCE},
    requests::{
        MIB, create, delete, delete_group_snapshot, delete_snapshot, expand, mounted, node_expand,
        publish, raw, snapshot, stage, unpublish, unstage,
    },
};
use tonic::{Code, Response, Status};

use crate::{
    attach::{attach, attaching},
    csi_pre_v1_calls::{Caller, OLD},
    dialect::controller_v0,
    group_snapshots::{together, with_reflinks},
    helpers::{detach, ok, paths, volume},
};

/// So many callers make each call at the same time.
const CALLERS: usize = 8;

/// The response that all callers get who make a call at the same time. One that is told ABORTED repeats the call.
async fn at_once<T: Debug + PartialEq>(what: &str, call: impl AsyncFn() -> Result<T, Status>) -> T {
    let deadline = Instant::now() + PATIENCE;
    let callers = (0..CALLERS).map(|_| async {
        loop {
            match call().await {
                Ok(answer) => return answer,
                Err(status) => assert_eq!(status.code(), Code::Aborted, "{what}: {status}"),
            }
            assert!(Instant::now() < deadline, "{what} is never answered");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let mut answers = futures::future::join_all(callers).await;
    answers.dedup();
    assert_eq!(answers.len(), 1, "{what}: {answers:?}");
    answers.remove(0)
}

/// The message of a response.
fn message<T>(answer: Result<Response<T>, Status>) -> Result<T, Status> {
    answer.map(Response::into_inner)
}

/// How many mounts there are at a path.
fn mounts_at(path: &str) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let targets = table.lines().filter_map(|line| line.split(' ').nth(4));
    targets.filter(|target| *target == path).count()
}

#[tokio::test]
async fn calls_of_csi_1_that_arrive_at_once_are_served_or_aborted() {
    let agent = attaching().await;
    let plain = mounted("xfs");
    let made = at_once("CreateVolume", async || {
        let request = create("v", 320, &plain);
        message(agent.controller().create_volume(request).await)
    });
    let id = made.await.volume.unwrap().volume_id;
    at_once("ControllerPublishVolume", async || {
        let request = attach(&id, &plain);
        message(agent.controller().controller_publish_volume(request).await)
    })
    .await;
    let (staging, target) = paths(&agent, "v");
    at_once("NodeStageVolume", async || {
        let request = stage(&id, &staging, &plain);
        message(agent.node().node_stage_volume(request).await)
    })
    .await;
    at_once("NodePublishVolume", async || {
        let request = publish(&id, (&staging, &target), &plain);
        message(agent.node().node_publish_volume(request).await)
    })
    .await;
    assert_eq!([mounts_at(&staging), mounts_at(&target)], [1, 1]);
    snapshots_arrive_at_once(&agent, &id).await;
    changes_arrive_at_once(&agent, &id, &target).await;
    at_once("NodeUnpublishVolume", async || {
        message(
            agent
                .node()
                .node_unpublish_volume(unpublish(&id, &target))
                .await,
        )
    })
    .await;
    at_once("NodeUnstageVolume", async || {
        message(
            agent
                .node()
                .node_unstage_volume(unstage(&id, &staging))
                .await,
        )
    })
    .await;
    assert_eq!([mounts_at(&staging), mounts_at(&target)], [0, 0]);
    at_once("ControllerUnpublishVolume", async || {
        let request = detach(&id);
        message(
            agent
                .controller()
                .controller_unpublish_volume(request)
                .await,
        )
    })
    .await;
    at_once("DeleteVolume", async || {
        message(agent.controller().delete_volume(delete(&id)).await)
    })
    .await;
    let request = ListVolumesRequest::default();
    let left = ok(agent.controller().list_volumes(request).await);
    assert_eq!(left.entries, []);
}

async fn snapshots_arrive_at_once(agent: &Agent, id: &str) {
    let taken = at_once("CreateSnapshot", async || {
        message(agent.controller().create_snapshot(snapshot("s", id)).await)
    });
    let taken = taken.await.snapshot.unwrap();
    let listed = async || {
        let request = ListSnapshotsRequest::default();
        let list = ok(agent.controller().list_snapshots(request).await);
        let entries = list.entries.into_iter();
        entries.map(|entry| entry.snapshot.unwrap()).collect()
    };
    let all: Vec<_> = listed().await;
    assert_eq!(all, [taken.clone()]);
    at_once("DeleteSnapshot", async || {
        let request = delete_snapshot(&taken.snapshot_id);
        message(agent.controller().delete_snapshot(request).await)
    })
    .await;
    assert_eq!(listed().await, []);
}

async fn changes_arrive_at_once(agent: &Agent, id: &str, target: &str) {
    let grown = at_once("ControllerExpandVolume", async || {
        let request = expand(id, 400);
        message(agent.controller().controller_expand_volume(request).await)
    });
    assert_eq!(grown.await.capacity_bytes, 400 * MIB);
    let grown = at_once("NodeExpandVolume", async || {
        message(
            agent
                .node()
                .node_expand_volume(node_expand(id, target))
                .await,
        )
    });
    assert_eq!(grown.await.capacity_bytes, 400 * MIB);
    at_once("ControllerModifyVolume", async || {
        let request = ControllerModifyVolumeRequest {
            volume_id: id.to_owned(),
            mutable_parameters: [("label.tier".to_owned(), "gold".to_owned())].into(),
            ..ControllerModifyVolumeRequest::default()
        };
        message(agent.controller().controller_modify_volume(request).await)
    })
    .await;
}

#[tokio::test]
async fn group_snapshot_calls_that_arrive_at_once_are_served_or_aborted() {
    let agent = with_reflinks(1 << 10).await;
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        ids.push(volume(&agent, name, 16, &raw()).await);
    }
    let taken = at_once("CreateVolumeGroupSnapshot", async || {
        let mut groups = agent.group_controller();
        message(
            groups
                .create_volume_group_snapshot(together("g", &ids))
                .await,
        )
    });
    let taken = taken.await.group_snapshot.unwrap();
    let listed = async || {
        let request = ListSnapshotsRequest::default();
        ok(agent.controller().list_snapshots(request).await).entries
    };
    assert_eq!(listed().await.len(), 2);
    at_once("DeleteVolumeGroupSnapshot", async || {
        let mut groups = agent.group_controller();
        message(
            groups
                .delete_volume_group_snapshot(delete_group_snapshot(&taken))
                .await,
        )
    })
    .await;
    assert_eq!(listed().await, []);
}

#[tokio::test]
async fn calls_of_old_dialects_that_arrive_at_once_are_served_or_aborted() {
    let agent = attaching().await;
    let plain = mounted("ext4");
    for dialect in OLD {
        let caller = Caller::of(&agent, dialect);
        let made = at_once("CreateVolume", async || {
            caller.create("v", (32 * MIB, 0), &[plain.clone()]).await
        });
        let id = made.await.id;
        at_once("ControllerPublishVolume", async || {
            caller.attach((&id, "node-a"), &plain, false).await
        })
        .await;
        let (staging, target) = paths(&agent, "v");
        at_once("NodeStageVolume", async || {
            caller.stage(&id, &staging, &plain).await
        })
        .await;
        at_once("NodePublishVolume", async || {
            caller
                .publish(&id, (&staging, &target), &plain, false)
                .await
        })
        .await;
        assert_eq!(mounts_at(&target), 1);
        at_once("NodeUnpublishVolume", async || {
            caller.unpublish(&id, &target).await
        })
        .await;
        at_once("NodeUnstageVolume", async || {
            caller.unstage(&id, &staging).await
        })
        .await;
        assert_eq!([mounts_at(&staging), mounts_at(&target)], [0, 0]);
        at_once("ControllerUnpublishVolume", async || {
            caller.detach(&id, "node-a").await
        })
        .await;
        old_snapshots_arrive_at_once(&agent, &id).await;
        at_once("DeleteVolume", async || caller.delete(&id).await).await;
        assert_eq!(caller.volumes().await.unwrap(), []);
        fs::remove_dir(&target).unwrap();
    }
}

/// CSI 0.1 has no snapshots: its volumes have them by 0.3.
async fn old_snapshots_arrive_at_once(agent: &Agent, id: &str) {
    use drumlin_proto::csi::v0;
    let taken = at_once("CreateSnapshot", async || {
        let request = v0::CreateSnapshotRequest {
            source_volume_id: id.to_owned(),
            name: "s".to_owned(),
            ..Default::default()
        };
        message(controller_v0(agent).create_snapshot(request).await)
    });
    let taken = taken.await.snapshot.unwrap();
    at_once("DeleteSnapshot", async || {
        let request = v0::DeleteSnapshotRequest {
            snapshot_id: taken.id.clone(),
            ..Default::default()
        };
        message(controller_v0(agent).delete_snapshot(request).await)
    })
    .await;
    let request = v0::ListSnapshotsRequest::default();
    let left = ok(controller_v0(agent).list_snapshots(request).await);
    assert_eq!(left.entries, []);
}
