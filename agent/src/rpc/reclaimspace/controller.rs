//! `reclaimspace.ReclaimSpaceController`: reclaims the free blocks of any volume.

use drumlin_core::types::Reference;
use drumlin_proto::reclaimspace;
use tonic::{Request, Response, Status};

use super::{Front, front::consumptions};
use crate::rpc::respond::answer;

#[tonic::async_trait]
impl reclaimspace::reclaim_space_controller_server::ReclaimSpaceController for Front {
    async fn controller_reclaim_space(
        &self,
        request: Request<reclaimspace::ControllerReclaimSpaceRequest>,
    ) -> Result<Response<reclaimspace::ControllerReclaimSpaceResponse>, Status> {
        const METHOD: &str = "reclaimspace.ReclaimSpaceController/ControllerReclaimSpace";
        let id = request.into_inner().volume_id;
        answer(METHOD, &id, async {
            let volume = Reference::parse("volume_id", &id)?;
            let (pre_usage, post_usage) = consumptions(self.operations.reclaim(&volume).await?);
            Ok(reclaimspace::ControllerReclaimSpaceResponse {
                pre_usage,
                post_usage,
            })
        })
        .await
    }
}
