//! `csi.v1.GroupController`: group snapshots, of several volumes at one point in time.

use drumlin_core::{
    Error, Result,
    ops::CreateGroupSnapshot,
    types::{Name, Reference},
};
use drumlin_proto::csi::v1;
use tonic::{Request, Response, Status};

use super::{Front, capabilities, convert};
use crate::rpc::respond::answer;

#[tonic::async_trait]
impl v1::group_controller_server::GroupController for Front {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<v1::GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::GroupControllerGetCapabilitiesResponse>, Status> {
        const METHOD: &str = "csi.v1.GroupController/GroupControllerGetCapabilities";
        answer(METHOD, "", async {
            Ok(v1::GroupControllerGetCapabilitiesResponse {
                capabilities: capabilities::group_controller(),
            })
        })
        .await
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<v1::CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::CreateVolumeGroupSnapshotResponse>, Status> {
        const METHOD: &str = "csi.v1.GroupController/CreateVolumeGroupSnapshot";
        let request = request.into_inner();
        let name = request.name.clone();
        answer(METHOD, name, async {
            let request = CreateGroupSnapshot {
                name: Name::parse("name", &request.name)?,
                of: convert::references("source_volume_ids", &request.source_volume_ids)?,
                parameters: request.parameters,
            };
            let made = self.operations.create_group_snapshot(request).await?;
            Ok(v1::CreateVolumeGroupSnapshotResponse {
                group_snapshot: Some(convert::group_snapshot(&made)?),
            })
        })
        .await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<v1::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::DeleteVolumeGroupSnapshotResponse>, Status> {
        const METHOD: &str = "csi.v1.GroupController/DeleteVolumeGroupSnapshot";
        let request = request.into_inner();
        answer(METHOD, &request.group_snapshot_id, async {
            let (group, members) = named(&request.group_snapshot_id, &request.snapshot_ids)?;
            self.operations
                .delete_group_snapshot(&group, &members)
                .await?;
            Ok(v1::DeleteVolumeGroupSnapshotResponse {})
        })
        .await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<v1::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::GetVolumeGroupSnapshotResponse>, Status> {
        const METHOD: &str = "csi.v1.GroupController/GetVolumeGroupSnapshot";
        let request = request.into_inner();
        answer(METHOD, &request.group_snapshot_id, async {
            let (group, members) = named(&request.group_snapshot_id, &request.snapshot_ids)?;
            let found = self.operations.get_group_snapshot(&group, &members).await?;
            Ok(v1::GetVolumeGroupSnapshotResponse {
                group_snapshot: Some(convert::group_snapshot(&found)?),
            })
        })
        .await
    }
}

/// A group snapshot, and its members as known to the caller.
fn named(id: &str, members: &[String]) -> Result<(Reference, Vec<Reference>), Error> {
    let group = Reference::parse("group_snapshot_id", id)?;
    Ok((group, convert::references("snapshot_ids", members)?))
}
