//! `reclaimspace.ReclaimSpaceNode`: reclaims the free blocks of a volume that is mounted here.

use drumlin_core::{Error, types::Reference};
use drumlin_proto::reclaimspace;
use tonic::{Request, Response, Status};

use super::{Front, front::consumptions};
use crate::rpc::{csi_v1::convert, respond::answer};

#[tonic::async_trait]
impl reclaimspace::reclaim_space_node_server::ReclaimSpaceNode for Front {
    async fn node_reclaim_space(
        &self,
        request: Request<reclaimspace::NodeReclaimSpaceRequest>,
    ) -> Result<Response<reclaimspace::NodeReclaimSpaceResponse>, Status> {
        const METHOD: &str = "reclaimspace.ReclaimSpaceNode/NodeReclaimSpace";
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer(METHOD, id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            if let capability @ Some(_) = &request.volume_capability {
                convert::capability("volume_capability", capability.as_ref())?;
            }
            // Clients send the staging path in one field, and the path of a publication in the other.
            let path = [&request.volume_path, &request.staging_target_path]
                .into_iter()
                .find(|path| !path.is_empty())
                .ok_or_else(|| Error::invalid("volume_path is missing"))?;
            let reclaimed = self.operations.reclaim_at(&volume, path).await?;
            let (pre_usage, post_usage) = consumptions(reclaimed);
            Ok(reclaimspace::NodeReclaimSpaceResponse {
                pre_usage,
                post_usage,
            })
        })
        .await
    }
}
