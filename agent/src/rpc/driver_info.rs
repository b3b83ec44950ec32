//! `csi.v1` without a node: driver name, and the capability that volumes are expanded by their nodes.
//!
//! The standard external-resizer runs once per cluster and uses one socket. With these capabilities it leaves the
//! expansion of a volume to the kubelet of its node, which calls the agent there (`NodeExpandVolume`).

use std::sync::Arc;

use drumlin_proto::csi::v1::{
    self, node_service_capability::rpc::Type as Node, plugin_capability::service::Type as Service,
};
use tonic::{Request, Response, Status, service::Routes};

use super::{
    csi_v1::{capabilities, identity::plugin_info},
    respond::{answer, unimplemented},
};

/// The services and their shared state.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    driver: Arc<str>,
}

impl Front {
    /// The services with driver name `driver`.
    pub(crate) fn new(driver: &str) -> Self {
        Self {
            driver: driver.into(),
        }
    }

    /// Adds the services.
    pub(crate) fn register(self, routes: Routes) -> Routes {
        routes
            .add_service(v1::identity_server::IdentityServer::new(self.clone()))
            .add_service(v1::controller_server::ControllerServer::new(self.clone()))
            .add_service(v1::node_server::NodeServer::new(self))
    }
}

/// A service of which one method is implemented; the others are neither advertised nor implemented.
macro_rules! service {
    ($service:path, $answered:ident($asked:ident) -> $answer:ident: $work:expr, $($method:ident: $request:ident -> $response:ident,)*) => {
        #[tonic::async_trait]
        impl $service for Front {
            async fn $answered(&self, _: Request<v1::$asked>) -> Result<Response<v1::$answer>, Status> {
                answer(stringify!($answered), "", async { Ok($work) }).await
            }

            $(async fn $method(&self, _: Request<v1::$request>) -> Result<Response<v1::$response>, Status> {
                Err(unimplemented(stringify!($method)))
            })*
        }
    };
}

#[tonic::async_trait]
impl v1::identity_server::Identity for Front {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        answer("csi.v1.Identity/GetPluginInfo", "", async {
            Ok(plugin_info(&self.driver))
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        answer("csi.v1.Identity/GetPluginCapabilities", "", async {
            Ok(v1::GetPluginCapabilitiesResponse {
                capabilities: capabilities::plugin_with(&[Service::ControllerService]),
            })
        })
        .await
    }

    async fn probe(
        &self,
        _: Request<v1::ProbeRequest>,
    ) -> Result<Response<v1::ProbeResponse>, Status> {
        answer("csi.v1.Identity/Probe", "", async {
            Ok(v1::ProbeResponse { ready: Some(true) })
        })
        .await
    }
}

service! {
    v1::controller_server::Controller,
    controller_get_capabilities(ControllerGetCapabilitiesRequest) -> ControllerGetCapabilitiesResponse:
        v1::ControllerGetCapabilitiesResponse { capabilities: Vec::new() },
    create_volume: CreateVolumeRequest -> CreateVolumeResponse,
    delete_volume: DeleteVolumeRequest -> DeleteVolumeResponse,
    controller_publish_volume: ControllerPublishVolumeRequest -> ControllerPublishVolumeResponse,
    controller_unpublish_volume: ControllerUnpublishVolumeRequest -> ControllerUnpublishVolumeResponse,
    validate_volume_capabilities: ValidateVolumeCapabilitiesRequest -> ValidateVolumeCapabilitiesResponse,
    list_volumes: ListVolumesRequest -> ListVolumesResponse,
    controller_get_volume: ControllerGetVolumeRequest -> ControllerGetVolumeResponse,
    get_capacity: GetCapacityRequest -> GetCapacityResponse,
    create_snapshot: CreateSnapshotRequest -> CreateSnapshotResponse,
    delete_snapshot: DeleteSnapshotRequest -> DeleteSnapshotResponse,
    list_snapshots: ListSnapshotsRequest -> ListSnapshotsResponse,
    get_snapshot: GetSnapshotRequest -> GetSnapshotResponse,
    controller_expand_volume: ControllerExpandVolumeRequest -> ControllerExpandVolumeResponse,
    controller_modify_volume: ControllerModifyVolumeRequest -> ControllerModifyVolumeResponse,
    controller_list_volume_health: ControllerListVolumeHealthRequest -> ControllerListVolumeHealthResponse,
    controller_get_volume_health: ControllerGetVolumeHealthRequest -> ControllerGetVolumeHealthResponse,
}

service! {
    v1::node_server::Node,
    node_get_capabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse:
        v1::NodeGetCapabilitiesResponse { capabilities: capabilities::node_with(&[Node::ExpandVolume]) },
    node_stage_volume: NodeStageVolumeRequest -> NodeStageVolumeResponse,
    node_unstage_volume: NodeUnstageVolumeRequest -> NodeUnstageVolumeResponse,
    node_publish_volume: NodePublishVolumeRequest -> NodePublishVolumeResponse,
    node_unpublish_volume: NodeUnpublishVolumeRequest -> NodeUnpublishVolumeResponse,
    node_get_volume_stats: NodeGetVolumeStatsRequest -> NodeGetVolumeStatsResponse,
    node_expand_volume: NodeExpandVolumeRequest -> NodeExpandVolumeResponse,
    node_get_info: NodeGetInfoRequest -> NodeGetInfoResponse,
    node_get_volume_health: NodeGetVolumeHealthRequest -> NodeGetVolumeHealthResponse,
    node_get_storage_health: NodeGetStorageHealthRequest -> NodeGetStorageHealthResponse,
}
