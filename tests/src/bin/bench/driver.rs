//! What any CSI driver is asked to do: ours, and the peer beside it.

use std::path::PathBuf;

use drumlin_proto::csi::v1::{
    DeleteSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest, VolumeCapability,
    controller_client::ControllerClient,
};
use drumlin_tests::{
    agent::Agent,
    requests::{create, snapshot},
};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::idle::{done, millis};

/// So many volumes are made.
pub(crate) const VOLUMES: usize = 1000;
/// So many snapshots are listed.
const SNAPSHOTS: usize = 40;
/// So many callers at once.
const CALLERS: usize = 8;

/// A driver that runs.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) socket: PathBuf,
    pub(crate) pid: i32,
}

impl Driver {
    pub(crate) fn of(agent: &Agent) -> Self {
        Self {
            socket: agent.socket(),
            pid: agent.pid(),
        }
    }

    /// A client on a connection of its own.
    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(drumlin_proto::connect(&self.socket).unwrap())
    }

    /// A thousand volumes of 16 MiB, made by eight callers on connections of their own; their ids.
    pub(crate) async fn create_from_eight(&self, capability: &VolumeCapability) -> Vec<String> {
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (mut controller, capability) = (self.controller(), capability.clone());
            callers.spawn(async move {
                let mut ids = Vec::new();
                for index in (caller..VOLUMES).step_by(CALLERS) {
                    let request = create(&format!("v{index}"), 16, &capability);
                    let created = controller.create_volume(request).await.unwrap();
                    ids.push(created.into_inner().volume.unwrap().volume_id);
                }
                ids
            });
        }
        callers.join_all().await.concat()
    }

    /// Processor time of one list of them all, in milliseconds.
    pub(crate) async fn list_volumes(&self) -> f64 {
        let mut controller = self.controller();
        let all = ListVolumesRequest::default;
        // The first one reads what the calls before have changed.
        controller.list_volumes(all()).await.unwrap();
        let before = done(self.pid);
        for _ in 0..100 {
            let list = controller.list_volumes(all()).await.unwrap();
            assert_eq!(list.into_inner().entries.len(), VOLUMES);
        }
        millis(done(self.pid).ticks - before.ticks) / 100.0
    }

    /// Processor time of one list of the snapshots of the first forty of `ids`, in milliseconds; they are deleted then.
    pub(crate) async fn list_snapshots(&self, ids: &[String]) -> f64 {
        let mut controller = self.controller();
        let mut taken = Vec::new();
        for (index, id) in ids.iter().take(SNAPSHOTS).enumerate() {
            let made = controller.create_snapshot(snapshot(&format!("s{index}"), id));
            taken.push(made.await.unwrap().into_inner().snapshot.unwrap());
        }
        let before = done(self.pid);
        for _ in 0..500 {
            let list = controller.list_snapshots(ListSnapshotsRequest::default());
            assert_eq!(list.await.unwrap().into_inner().entries.len(), SNAPSHOTS);
        }
        let took = millis(done(self.pid).ticks - before.ticks) / 500.0;
        for snapshot in taken {
            let request = DeleteSnapshotRequest {
                snapshot_id: snapshot.snapshot_id,
                ..Default::default()
            };
            controller.delete_snapshot(request).await.unwrap();
        }
        took
    }
}
