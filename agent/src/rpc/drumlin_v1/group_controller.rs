//! `drumlin.v1.GroupController`: operations on group snapshots beyond CSI.

use drumlin_core::{
    ops::RollBack,
    types::{Name, Reference},
};
use drumlin_proto::drumlin::v1;
use tonic::{Request, Response, Status};

use super::Front;
use crate::rpc::{csi_v1::convert, respond::answer};

#[tonic::async_trait]
impl v1::group_controller_server::GroupController for Front {
    async fn rollback_volume_group_snapshot(
        &self,
        request: Request<v1::RollbackVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::RollbackVolumeGroupSnapshotResponse>, Status> {
        const METHOD: &str = "drumlin.v1.GroupController/RollbackVolumeGroupSnapshot";
        let request = request.into_inner();
        answer(METHOD, &request.group_snapshot_id, async {
            let request = RollBack {
                name: Name::parse("name", &request.name)?,
                to: Reference::parse("group_snapshot_id", &request.group_snapshot_id)?,
                keeps: !request.discard,
            };
            let kept = self.operations.roll_back(request).await?;
            Ok(v1::RollbackVolumeGroupSnapshotResponse {
                kept: kept.as_ref().map(convert::group_snapshot).transpose()?,
            })
        })
        .await
    }
}
