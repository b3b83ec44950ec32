//! `csi.v1.GroupController` of the front.

use drumlin_proto::csi::v1;
use tonic::{Request, Response, Status};

use super::{Front, front::patience};
use crate::rpc::{
    csi_v1::capabilities,
    respond::{answer, forward},
};

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
        let patience = patience(&request);
        let request = request.into_inner();
        let name = request.name.clone();
        let work = self.cluster.create_group_snapshot(request, patience);
        forward(METHOD, name, work).await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<v1::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::DeleteVolumeGroupSnapshotResponse>, Status> {
        const METHOD: &str = "csi.v1.GroupController/DeleteVolumeGroupSnapshot";
        let patience = patience(&request);
        let request = request.into_inner();
        let id = request.group_snapshot_id.clone();
        let work = self.cluster.delete_group_snapshot(request, patience);
        forward(METHOD, id, work).await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<v1::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::GetVolumeGroupSnapshotResponse>, Status> {
        const METHOD: &str = "csi.v1.GroupController/GetVolumeGroupSnapshot";
        let patience = patience(&request);
        let request = request.into_inner();
        let id = request.group_snapshot_id.clone();
        let work = self.cluster.get_group_snapshot(request, patience);
        forward(METHOD, id, work).await
    }
}
