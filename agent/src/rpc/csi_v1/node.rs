//! `csi.v1.Node`: stage, publish, expand and measure volumes on this node.

use drumlin_core::{
    Error,
    ops::{PublishVolume, StageVolume, TargetCleanup, Usage},
    types::{AbsolutePath, Reference, Topology},
};
use drumlin_proto::{
    MOUNT_ROOT, MOUNT_ROOT_METADATA,
    csi::v1::{self, volume_usage::Unit},
};
use tonic::{Request, Response, Status};

use super::{Front, capabilities, convert, health};
use crate::rpc::respond::answer;

#[tonic::async_trait]
impl v1::node_server::Node for Front {
    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Result<Response<v1::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v1.Node/NodeStageVolume", id, async {
            convert::volume_context("volume_context", &request.volume_context)
                .map_err(Error::exceeds_on_node)?;
            let request = StageVolume {
                volume: Reference::parse("volume_id", &request.volume_id)?,
                staging: AbsolutePath::parse("staging_target_path", &request.staging_target_path)?,
                capability: convert::capability(
                    "volume_capability",
                    request.volume_capability.as_ref(),
                )
                .map_err(Error::exceeds_on_node)?,
                publish_context: request.publish_context,
            };
            self.operations.stage_volume(request).await?;
            Ok(v1::NodeStageVolumeResponse {})
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Result<Response<v1::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v1.Node/NodeUnstageVolume", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            let staging = AbsolutePath::parse("staging_target_path", &request.staging_target_path)?;
            self.operations.unstage_volume(&volume, staging).await?;
            Ok(v1::NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Result<Response<v1::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v1.Node/NodePublishVolume", id, async {
            convert::volume_context("volume_context", &request.volume_context)
                .map_err(Error::exceeds_on_node)?;
            let request = PublishVolume {
                volume: Reference::parse("volume_id", &request.volume_id)?,
                target: convert::target(
                    &request.target_path,
                    request.volume_context.get(MOUNT_ROOT).map(String::as_str),
                )?,
                capability: convert::capability(
                    "volume_capability",
                    request.volume_capability.as_ref(),
                )
                .map_err(Error::exceeds_on_node)?,
                staging: convert::optional_path(
                    "staging_target_path",
                    &request.staging_target_path,
                )?,
                access: convert::access(request.readonly),
                publish_context: request.publish_context,
            };
            self.operations.publish_volume(request).await?;
            Ok(v1::NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<v1::NodeUnpublishVolumeResponse>, Status> {
        let root = request.metadata().get_bin(MOUNT_ROOT_METADATA).cloned();
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v1.Node/NodeUnpublishVolume", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            let root = root.map(|root| convert::metadata_text(MOUNT_ROOT_METADATA, &root));
            let target = convert::target(&request.target_path, root.transpose()?.as_deref())?;
            self.operations
                .unpublish_volume(&volume, target, TargetCleanup::Removed)
                .await?;
            Ok(v1::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<v1::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v1.Node/NodeGetVolumeStats", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            given("volume_path", &request.volume_path)?;
            convert::optional_path("staging_target_path", &request.staging_target_path)?;
            let stats = self.operations.stats(&volume, &request.volume_path).await?;
            let mut usage = vec![usage(&stats.bytes, Unit::Bytes)];
            usage.extend(
                stats
                    .inodes
                    .map(|inodes| self::usage(&inodes, Unit::Inodes)),
            );
            Ok(v1::NodeGetVolumeStatsResponse {
                usage,
                volume_condition: Some(convert::condition(&stats.condition)),
            })
        })
        .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Result<Response<v1::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v1.Node/NodeExpandVolume", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            given("volume_path", &request.volume_path)?;
            let size = convert::size_range(request.capacity_range.as_ref())?;
            let capability = convert::optional_capability(request.volume_capability.as_ref())?;
            convert::optional_path("staging_target_path", &request.staging_target_path)?;
            let size = self
                .operations
                .expand_node(&volume, &request.volume_path, size, capability)
                .await?;
            Ok(v1::NodeExpandVolumeResponse {
                capacity_bytes: size.to_wire(),
            })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<v1::NodeGetCapabilitiesResponse>, Status> {
        answer("csi.v1.Node/NodeGetCapabilities", "", async {
            Ok(v1::NodeGetCapabilitiesResponse {
                capabilities: capabilities::node(self.operations.settings()),
            })
        })
        .await
    }

    async fn node_get_info(
        &self,
        _: Request<v1::NodeGetInfoRequest>,
    ) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
        answer("csi.v1.Node/NodeGetInfo", "", async {
            let settings = self.operations.settings();
            Ok(v1::NodeGetInfoResponse {
                node_id: settings.node.to_string(),
                max_volumes_per_node: settings.max_volumes.map_or(0, i64::from),
                accessible_topology: Some(convert::topology(&Topology::of(&settings.node))),
            })
        })
        .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<v1::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<v1::NodeGetVolumeHealthResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v1.Node/NodeGetVolumeHealth", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            let published =
                convert::optional_path("volume_publish_path", &request.volume_publish_path);
            let staged =
                convert::optional_path("staging_target_path", &request.staging_target_path);
            let paths = published?.into_iter().chain(staged?).collect();
            let health = self.operations.node_volume_health(&volume, paths).await?;
            Ok(v1::NodeGetVolumeHealthResponse {
                volume_health: Some(health::volume(&health)),
            })
        })
        .await
    }

    async fn node_get_storage_health(
        &self,
        _: Request<v1::NodeGetStorageHealthRequest>,
    ) -> Result<Response<v1::NodeGetStorageHealthResponse>, Status> {
        answer("csi.v1.Node/NodeGetStorageHealth", "", async {
            let faults = self.operations.storage_health().await;
            Ok(v1::NodeGetStorageHealthResponse {
                backend_health: faults.iter().map(health::storage).collect(),
            })
        })
        .await
    }
}

/// A path that is validated only after the volume is known to exist.
fn given(field: &str, path: &str) -> drumlin_core::Result<()> {
    if path.is_empty() {
        return Err(Error::invalid(format!("{field} is missing")));
    }
    Ok(())
}

fn usage(usage: &Usage, unit: Unit) -> v1::VolumeUsage {
    v1::VolumeUsage {
        available: convert::number(usage.available),
        total: convert::number(usage.total),
        used: convert::number(usage.used),
        unit: unit.into(),
    }
}
