//! `csi.v0.Node`: stage and publish volumes on this node.

use drumlin_core::{
    Error,
    ops::{PublishVolume, StageVolume, TargetCleanup},
    types::{AbsolutePath, Reference, Topology},
};
use drumlin_proto::csi::v0;
use tonic::{Request, Response, Status};

use super::{Front, capabilities};
use crate::rpc::{csi_pre_v1, csi_v1::convert as common, respond::answer};

#[tonic::async_trait]
impl v0::node_server::Node for Front {
    async fn node_stage_volume(
        &self,
        request: Request<v0::NodeStageVolumeRequest>,
    ) -> Result<Response<v0::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v0.Node/NodeStageVolume", id, async {
            common::volume_context("volume_attributes", &request.volume_attributes)
                .map_err(Error::exceeds_on_node)?;
            let request = StageVolume {
                volume: Reference::parse("volume_id", &request.volume_id)?,
                staging: AbsolutePath::parse("staging_target_path", &request.staging_target_path)?,
                capability: csi_pre_v1::capability(
                    "volume_capability",
                    request.volume_capability.as_ref(),
                )
                .map_err(Error::exceeds_on_node)?,
                publish_context: request.publish_info,
            };
            self.operations.stage_volume(request).await?;
            Ok(v0::NodeStageVolumeResponse {})
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v0::NodeUnstageVolumeRequest>,
    ) -> Result<Response<v0::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v0.Node/NodeUnstageVolume", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            let staging = AbsolutePath::parse("staging_target_path", &request.staging_target_path)?;
            csi_pre_v1::must_exist(&self.operations, &volume).await?;
            self.operations.unstage_volume(&volume, staging).await?;
            Ok(v0::NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<v0::NodePublishVolumeRequest>,
    ) -> Result<Response<v0::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v0.Node/NodePublishVolume", id, async {
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
                staging: common::optional_path(
                    "staging_target_path",
                    &request.staging_target_path,
                )?,
                access: common::access(request.readonly),
                publish_context: request.publish_info,
            };
            self.operations.publish_volume(request).await?;
            Ok(v0::NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v0::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<v0::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v0.Node/NodeUnpublishVolume", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            let target = AbsolutePath::parse("target_path", &request.target_path)?;
            csi_pre_v1::must_exist(&self.operations, &volume).await?;
            self.operations
                .unpublish_volume(&volume, target.into(), TargetCleanup::Left)
                .await?;
            Ok(v0::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_id(
        &self,
        _: Request<v0::NodeGetIdRequest>,
    ) -> Result<Response<v0::NodeGetIdResponse>, Status> {
        answer("csi.v0.Node/NodeGetId", "", async {
            Ok(v0::NodeGetIdResponse {
                node_id: self.operations.settings().node.to_string(),
            })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v0::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<v0::NodeGetCapabilitiesResponse>, Status> {
        answer("csi.v0.Node/NodeGetCapabilities", "", async {
            Ok(v0::NodeGetCapabilitiesResponse {
                capabilities: capabilities::node(),
            })
        })
        .await
    }

    async fn node_get_info(
        &self,
        _: Request<v0::NodeGetInfoRequest>,
    ) -> Result<Response<v0::NodeGetInfoResponse>, Status> {
        answer("csi.v0.Node/NodeGetInfo", "", async {
            let settings = self.operations.settings();
            let here = Topology::of(&settings.node);
            Ok(v0::NodeGetInfoResponse {
                node_id: settings.node.to_string(),
                max_volumes_per_node: settings.max_volumes.map_or(0, i64::from),
                accessible_topology: Some(v0::Topology { segments: here.0 }),
            })
        })
        .await
    }
}
