//! `csi.Controller`: create, list and delete volumes.

use drumlin_core::{
    Error, Result,
    ops::{CapacityQuery, CreateVolume, PublishController, Volume},
    types::{Map, Name, Reference, Requirement},
};
use drumlin_proto::csi::v0_1;
use tonic::{Request, Response, Status};

use super::{Front, capabilities, convert, version};
use crate::rpc::{
    csi_pre_v1,
    csi_v1::convert as common,
    respond::{answer, answer_quietly},
};

#[tonic::async_trait]
impl v0_1::controller_server::Controller for Front {
    async fn create_volume(
        &self,
        request: Request<v0_1::CreateVolumeRequest>,
    ) -> Result<Response<v0_1::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let name = request.name.clone();
        answer("csi.Controller/CreateVolume", name, async {
            version::check(request.version.as_ref())?;
            let request = CreateVolume {
                name: Name::parse("name", &request.name)?,
                size: convert::size_range(request.capacity_range.as_ref())?,
                capabilities: csi_pre_v1::capabilities(&request.volume_capabilities)?,
                source: None,
                topology: Requirement::default(),
                parameters: request.parameters,
                mutable: Map::new(),
            };
            let volume = self.operations.create_volume(request).await?;
            Ok(v0_1::CreateVolumeResponse {
                volume_info: Some(convert::volume(&volume)),
            })
        })
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<v0_1::DeleteVolumeRequest>,
    ) -> Result<Response<v0_1::DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = &request.volume_id;
        answer("csi.Controller/DeleteVolume", id, async {
            version::check(request.version.as_ref())?;
            let volume = Reference::parse("volume_id", id)?;
            self.operations.delete_volume(&volume).await?;
            Ok(v0_1::DeleteVolumeResponse {})
        })
        .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v0_1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v0_1::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.Controller/ControllerPublishVolume", id, async {
            version::check(request.version.as_ref())?;
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            if request.node_id.is_empty() {
                return Err(Error::invalid("node_id is missing"));
            }
            let request = PublishController {
                volume,
                node: request.node_id,
                capability: csi_pre_v1::capability(
                    "volume_capability",
                    request.volume_capability.as_ref(),
                )?,
                access: common::access(request.readonly),
            };
            let publish_volume_info = self.operations.publish_controller(request).await?;
            Ok(v0_1::ControllerPublishVolumeResponse {
                publish_volume_info,
            })
        })
        .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v0_1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v0_1::ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = &request.volume_id;
        answer("csi.Controller/ControllerUnpublishVolume", id, async {
            version::check(request.version.as_ref())?;
            let volume = Reference::parse("volume_id", id)?;
            csi_pre_v1::unpublish_controller(&self.operations, &volume, &request.node_id).await?;
            Ok(v0_1::ControllerUnpublishVolumeResponse {})
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<v0_1::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<v0_1::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let id = &request.volume_id;
        answer("csi.Controller/ValidateVolumeCapabilities", id, async {
            version::check(request.version.as_ref())?;
            let volume = Reference::parse("volume_id", id)?;
            let wanted = csi_pre_v1::validation(
                volume,
                &request.volume_capabilities,
                &request.volume_attributes,
            )?;
            let problem = self.operations.validate_volume(&wanted).await?;
            Ok(v0_1::ValidateVolumeCapabilitiesResponse {
                supported: problem.is_none(),
                message: common::words(&problem.unwrap_or_default()),
            })
        })
        .await
    }

    async fn list_volumes(
        &self,
        request: Request<v0_1::ListVolumesRequest>,
    ) -> Result<Response<v0_1::ListVolumesResponse>, Status> {
        use v0_1::list_volumes_response::Entry;
        let request = request.into_inner();
        answer("csi.Controller/ListVolumes", "", async {
            version::check(request.version.as_ref())?;
            let page = convert::page(request.max_entries, request.starting_token)?;
            let listing = self.operations.list_volumes(&page).await?;
            let entry = |volume: &Volume| Entry {
                volume_info: Some(convert::volume(volume)),
            };
            Ok(v0_1::ListVolumesResponse {
                entries: listing.entries.iter().map(entry).collect(),
                next_token: listing.next.unwrap_or_default(),
            })
        })
        .await
    }

    async fn get_capacity(
        &self,
        request: Request<v0_1::GetCapacityRequest>,
    ) -> Result<Response<v0_1::GetCapacityResponse>, Status> {
        let request = request.into_inner();
        answer("csi.Controller/GetCapacity", "", async {
            version::check(request.version.as_ref())?;
            let query = CapacityQuery {
                capabilities: csi_pre_v1::some_capabilities(&request.volume_capabilities)?,
                parameters: request.parameters,
                topology: None,
            };
            let (capacity, _) = self.operations.capacity(&query).await?;
            Ok(v0_1::GetCapacityResponse {
                available_capacity: capacity.available.bytes(),
            })
        })
        .await
    }

    async fn controller_probe(
        &self,
        request: Request<v0_1::ControllerProbeRequest>,
    ) -> Result<Response<v0_1::ControllerProbeResponse>, Status> {
        answer_quietly("csi.Controller/ControllerProbe", async {
            version::check(request.into_inner().version.as_ref())?;
            self.operations.probe().await?;
            Ok(v0_1::ControllerProbeResponse {})
        })
        .await
    }

    async fn controller_get_capabilities(
        &self,
        request: Request<v0_1::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v0_1::ControllerGetCapabilitiesResponse>, Status> {
        answer("csi.Controller/ControllerGetCapabilities", "", async {
            version::check(request.into_inner().version.as_ref())?;
            let settings = self.operations.settings();
            Ok(v0_1::ControllerGetCapabilitiesResponse {
                capabilities: capabilities::controller(settings),
            })
        })
        .await
    }
}
