//! What the calls of snapshots and group snapshots would be answered.

use std::time::SystemTime;

use drumlin_proto::csi::v1;
use tonic::Status;

use super::{Answer, Planned, read};

impl Planned {
    /// Calls that change snapshots.
    pub(super) fn snapshot_call(
        &mut self,
        method: &str,
        message: &[u8],
        node: &str,
    ) -> Result<Option<Answer>, Status> {
        let answer = match method {
            "/csi.v1.Controller/CreateSnapshot" => {
                self.note("CreateSnapshot");
                let request: v1::CreateSnapshotRequest = read(message)?;
                let snapshot = self.snapshot(&request.source_volume_id, node);
                self.snapshots
                    .insert(snapshot.snapshot_id.clone(), snapshot.clone());
                Answer::message(&v1::CreateSnapshotResponse {
                    snapshot: Some(snapshot),
                })
            }
            "/csi.v1.Controller/DeleteSnapshot" => {
                self.note("DeleteSnapshot");
                let request: v1::DeleteSnapshotRequest = read(message)?;
                self.deleted.insert(request.snapshot_id);
                Answer::empty()
            }
            "/csi.v1.GroupController/CreateVolumeGroupSnapshot" => {
                self.note("CreateVolumeGroupSnapshot");
                let request: v1::CreateVolumeGroupSnapshotRequest = read(message)?;
                let sources = request.source_volume_ids.iter();
                let snapshots: Vec<_> = sources.map(|id| self.snapshot(id, node)).collect();
                let class = request.source_volume_ids.first();
                let group_snapshot = v1::VolumeGroupSnapshot {
                    group_snapshot_id: self.handle(node, class.map_or("default", |id| id)),
                    snapshots,
                    creation_time: Some(SystemTime::now().into()),
                    ready_to_use: true,
                };
                let id = group_snapshot.group_snapshot_id.clone();
                self.group_snapshots.insert(id, group_snapshot.clone());
                Answer::message(&v1::CreateVolumeGroupSnapshotResponse {
                    group_snapshot: Some(group_snapshot),
                })
            }
            "/csi.v1.GroupController/DeleteVolumeGroupSnapshot" => {
                self.note("DeleteVolumeGroupSnapshot");
                let request: v1::DeleteVolumeGroupSnapshotRequest = read(message)?;
                self.deleted.insert(request.group_snapshot_id);
                Answer::empty()
            }
            _ => return Ok(None),
        };
        Ok(Some(answer))
    }

    /// Calls that read a snapshot that would be created.
    pub(super) fn snapshot_read(
        &self,
        method: &str,
        message: &[u8],
    ) -> Result<Option<Answer>, Status> {
        let answer = match method {
            "/csi.v1.Controller/ListSnapshots" => {
                let request: v1::ListSnapshotsRequest = read(message)?;
                let snapshot = self.snapshots.get(&request.snapshot_id);
                snapshot.map(|snapshot| {
                    let entry = v1::list_snapshots_response::Entry {
                        snapshot: Some(snapshot.clone()),
                    };
                    Answer::message(&v1::ListSnapshotsResponse {
                        entries: vec![entry],
                        ..v1::ListSnapshotsResponse::default()
                    })
                })
            }
            "/csi.v1.GroupController/GetVolumeGroupSnapshot" => {
                let request: v1::GetVolumeGroupSnapshotRequest = read(message)?;
                self.find(&request.group_snapshot_id)?;
                let found = self.group_snapshots.get(&request.group_snapshot_id);
                found.map(|found| {
                    Answer::message(&v1::GetVolumeGroupSnapshotResponse {
                        group_snapshot: Some(found.clone()),
                    })
                })
            }
            _ => None,
        };
        Ok(answer)
    }

    /// A snapshot of a volume as it would be.
    fn snapshot(&mut self, source: &str, node: &str) -> v1::Snapshot {
        v1::Snapshot {
            size_bytes: self.volumes.get(source).copied().unwrap_or(0),
            snapshot_id: self.handle(node, source),
            source_volume_id: source.to_owned(),
            creation_time: Some(SystemTime::now().into()),
            ready_to_use: true,
            ..v1::Snapshot::default()
        }
    }
}
