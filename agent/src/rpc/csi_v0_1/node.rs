//! `csi.Node`: publish volumes on this node. There is no staging: publish attaches, formats and mounts a volume, and
//! unpublish undoes all of that.

use drumlin_core::{
    Error,
    ops::PublishVolume,
    types::{AbsolutePath, Reference},
};
use drumlin_proto::csi::v0_1;
use tonic::{Request, Response, Status};

use super::{Front, version};
use crate::rpc::{
    csi_pre_v1,
    csi_v1::convert as common,
    respond::{answer, answer_quietly},
};

#[tonic::async_trait]
impl v0_1::node_server::Node for Front {
    async fn node_publish_volume(
        &self,
        request: Request<v0_1::NodePublishVolumeRequest>,
    ) -> Result<Response<v0_1::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.Node/NodePublishVolume", id, async {
            version::check(request.version.as_ref())?;
            common::volume_context("volume_attributes", &request.volume_attributes)
                .map_err(Error::exceeds_on_node)?;
            let request = PublishVolume {
                volume: Reference::parse("volume_id", &request.volume_id)?,
                target: AbsolutePath::parse("target_path", &request.target_path)?.into(),
                capability: csi_pre_v1::capability(
                    "volume_capability",
                    request.volume_capability.as_ref(),
                )
                .map_err(Error::exceeds_on_node)?,
                staging: None,
                access: common::access(request.readonly),
                publish_context: request.publish_volume_info,
            };
            self.operations.publish_directly(request).await?;
            Ok(v0_1::NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v0_1::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<v0_1::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = &request.volume_id;
        answer("csi.Node/NodeUnpublishVolume", id, async {
            version::check(request.version.as_ref())?;
            let volume = Reference::parse("volume_id", id)?;
            let target = AbsolutePath::parse("target_path", &request.target_path)?;
            csi_pre_v1::must_exist(&self.operations, &volume).await?;
            self.operations.unpublish_directly(&volume, target).await?;
            Ok(v0_1::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn get_node_id(
        &self,
        request: Request<v0_1::GetNodeIdRequest>,
    ) -> Result<Response<v0_1::GetNodeIdResponse>, Status> {
        answer("csi.Node/GetNodeID", "", async {
            version::check(request.into_inner().version.as_ref())?;
            Ok(v0_1::GetNodeIdResponse {
                node_id: self.operations.settings().node.to_string(),
            })
        })
        .await
    }

    async fn node_probe(
        &self,
        request: Request<v0_1::NodeProbeRequest>,
    ) -> Result<Response<v0_1::NodeProbeResponse>, Status> {
        answer_quietly("csi.Node/NodeProbe", async {
            version::check(request.into_inner().version.as_ref())?;
            self.operations.probe().await?;
            Ok(v0_1::NodeProbeResponse {})
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        request: Request<v0_1::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<v0_1::NodeGetCapabilitiesResponse>, Status> {
        answer("csi.Node/NodeGetCapabilities", "", async {
            version::check(request.into_inner().version.as_ref())?;
            // A node has no capability to report yet.
            Ok(v0_1::NodeGetCapabilitiesResponse {
                capabilities: Vec::new(),
            })
        })
        .await
    }
}
