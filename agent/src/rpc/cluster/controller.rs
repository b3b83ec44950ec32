//! `csi.v1.Controller` of the front.

use drumlin_proto::csi::v1;
use tonic::{Request, Response, Status};

use super::{Front, capabilities, front::patience};
use crate::rpc::respond::{answer, forward, unimplemented};

/// Methods of which each is answered by an operation of the front, and methods that are neither advertised nor implemented.
macro_rules! controller {
    (
        { $($method:ident($object:ident: $request:ident) -> $response:ident = $name:literal: $operation:ident,)+ }
        missing { $($missing:ident: $missing_request:ident -> $missing_response:ident,)+ }
    ) => {
        #[tonic::async_trait]
        impl v1::controller_server::Controller for Front {
            $(
                async fn $method(
                    &self,
                    request: Request<v1::$request>,
                ) -> Result<Response<v1::$response>, Status> {
                    let patience = patience(&request);
                    let request = request.into_inner();
                    let object = request.$object.clone();
                    let work = self.cluster.$operation(request, patience);
                    forward(concat!("csi.v1.Controller/", $name), object, work).await
                }
            )+

            async fn get_capacity(
                &self,
                request: Request<v1::GetCapacityRequest>,
            ) -> Result<Response<v1::GetCapacityResponse>, Status> {
                let work = async { self.cluster.capacity(request.get_ref()) };
                forward("csi.v1.Controller/GetCapacity", "", work).await
            }

            async fn controller_get_capabilities(
                &self,
                _: Request<v1::ControllerGetCapabilitiesRequest>,
            ) -> Result<Response<v1::ControllerGetCapabilitiesResponse>, Status> {
                answer("csi.v1.Controller/ControllerGetCapabilities", "", async {
                    Ok(v1::ControllerGetCapabilitiesResponse {
                        capabilities: capabilities::controller(),
                    })
                })
                .await
            }

            $(
                async fn $missing(
                    &self,
                    _: Request<v1::$missing_request>,
                ) -> Result<Response<v1::$missing_response>, Status> {
                    Err(unimplemented(stringify!($missing)))
                }
            )+
        }
    };
}

controller! { {
    create_volume(name: CreateVolumeRequest) -> CreateVolumeResponse = "CreateVolume": create_volume,
    delete_volume(volume_id: DeleteVolumeRequest) -> DeleteVolumeResponse = "DeleteVolume": delete_volume,
    validate_volume_capabilities(volume_id: ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse
        = "ValidateVolumeCapabilities": validate_volume,
    create_snapshot(name: CreateSnapshotRequest) -> CreateSnapshotResponse = "CreateSnapshot": create_snapshot,
    delete_snapshot(snapshot_id: DeleteSnapshotRequest) -> DeleteSnapshotResponse = "DeleteSnapshot": delete_snapshot,
    list_snapshots(snapshot_id: ListSnapshotsRequest) -> ListSnapshotsResponse = "ListSnapshots": list_snapshots,
    controller_expand_volume(volume_id: ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse
        = "ControllerExpandVolume": expand_volume,
    controller_modify_volume(volume_id: ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse
        = "ControllerModifyVolume": modify_volume,
    }
    missing {
    controller_publish_volume: ControllerPublishVolumeRequest -> ControllerPublishVolumeResponse,
    controller_unpublish_volume: ControllerUnpublishVolumeRequest -> ControllerUnpublishVolumeResponse,
    list_volumes: ListVolumesRequest -> ListVolumesResponse,
    controller_get_volume: ControllerGetVolumeRequest -> ControllerGetVolumeResponse,
    get_snapshot: GetSnapshotRequest -> GetSnapshotResponse,
    controller_list_volume_health: ControllerListVolumeHealthRequest -> ControllerListVolumeHealthResponse,
    controller_get_volume_health: ControllerGetVolumeHealthRequest -> ControllerGetVolumeHealthResponse,
    }
}
