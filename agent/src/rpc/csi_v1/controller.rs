//! `csi.v1.Controller`: create, get, list, modify and delete volumes and snapshots.

use drumlin_core::{
    Error, Result,
    ops::{
        CapacityQuery, CreateSnapshot, CreateVolume, PublishController, SnapshotFilter,
        ValidateVolume, Volume,
    },
    types::{Name, Reference, Topology},
};
use drumlin_proto::csi::v1;
use tonic::{Request, Response, Status};

use super::{Front, capabilities, convert, health};
use crate::rpc::respond::answer;

#[tonic::async_trait]
impl v1::controller_server::Controller for Front {
    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let name = request.name.clone();
        answer("csi.v1.Controller/CreateVolume", name, async {
            let request = CreateVolume {
                name: Name::parse("name", &request.name)?,
                size: convert::size_range(request.capacity_range.as_ref())?,
                capabilities: convert::capabilities(&request.volume_capabilities)?,
                source: convert::source(request.volume_content_source.as_ref())?,
                topology: convert::requirement(request.accessibility_requirements),
                parameters: request.parameters,
                mutable: request.mutable_parameters,
            };
            let volume = self.operations.create_volume(request).await?;
            Ok(v1::CreateVolumeResponse {
                volume: Some(convert::volume(&volume)),
            })
        })
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Result<Response<v1::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        answer("csi.v1.Controller/DeleteVolume", &id, async {
            let volume = Reference::parse("volume_id", &id)?;
            self.operations.delete_volume(&volume).await?;
            Ok(v1::DeleteVolumeResponse {})
        })
        .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v1.Controller/ControllerPublishVolume", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            if request.node_id.is_empty() {
                return Err(Error::invalid("node_id is missing"));
            }
            convert::volume_context("volume_context", &request.volume_context)?;
            let request = PublishController {
                volume,
                node: request.node_id,
                capability: convert::capability(
                    "volume_capability",
                    request.volume_capability.as_ref(),
                )?,
                access: convert::access(request.readonly),
            };
            let publish_context = self.operations.publish_controller(request).await?;
            Ok(v1::ControllerPublishVolumeResponse { publish_context })
        })
        .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = &request.volume_id;
        answer("csi.v1.Controller/ControllerUnpublishVolume", id, async {
            let volume = Reference::parse("volume_id", id)?;
            let node = Some(request.node_id.as_str()).filter(|node| !node.is_empty());
            self.operations.unpublish_controller(&volume, node).await?;
            Ok(v1::ControllerUnpublishVolumeResponse {})
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<v1::ValidateVolumeCapabilitiesResponse>, Status> {
        use v1::validate_volume_capabilities_response::Confirmed;
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v1.Controller/ValidateVolumeCapabilities", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            let capabilities = convert::capabilities(&request.volume_capabilities);
            let context = convert::volume_context("volume_context", &request.volume_context);
            let wanted = ValidateVolume {
                volume,
                capabilities: convert::supported(context.and(capabilities))?,
                parameters: request.parameters.clone(),
                mutable: request.mutable_parameters.clone(),
            };
            let problem = self.operations.validate_volume(&wanted).await?;
            Ok(match problem {
                Some(problem) => v1::ValidateVolumeCapabilitiesResponse {
                    confirmed: None,
                    message: convert::words(&problem),
                },
                None => v1::ValidateVolumeCapabilitiesResponse {
                    confirmed: Some(Confirmed {
                        volume_context: request.volume_context,
                        volume_capabilities: request.volume_capabilities,
                        parameters: request.parameters,
                        mutable_parameters: request.mutable_parameters,
                    }),
                    message: String::new(),
                },
            })
        })
        .await
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        use v1::list_volumes_response::{Entry, VolumeStatus};
        let request = request.into_inner();
        answer("csi.v1.Controller/ListVolumes", "", async {
            let page = convert::page(request.max_entries, request.starting_token)?;
            let listing = self.operations.list_volumes(&page).await?;
            let entry = |volume: &Volume| Entry {
                volume: Some(convert::volume(volume)),
                status: Some(VolumeStatus {
                    published_node_ids: published(volume),
                    volume_condition: Some(convert::condition(&volume.condition)),
                }),
            };
            Ok(v1::ListVolumesResponse {
                entries: listing.entries.iter().map(entry).collect(),
                next_token: listing.next.unwrap_or_default(),
            })
        })
        .await
    }

    async fn controller_get_volume(
        &self,
        request: Request<v1::ControllerGetVolumeRequest>,
    ) -> Result<Response<v1::ControllerGetVolumeResponse>, Status> {
        use v1::controller_get_volume_response::VolumeStatus;
        let id = request.into_inner().volume_id;
        answer("csi.v1.Controller/ControllerGetVolume", &id, async {
            let volume = Reference::parse("volume_id", &id)?;
            let volume = self.operations.get_volume(&volume).await?;
            Ok(v1::ControllerGetVolumeResponse {
                volume: Some(convert::volume(&volume)),
                status: Some(VolumeStatus {
                    published_node_ids: published(&volume),
                    volume_condition: Some(convert::condition(&volume.condition)),
                }),
            })
        })
        .await
    }

    async fn get_capacity(
        &self,
        request: Request<v1::GetCapacityRequest>,
    ) -> Result<Response<v1::GetCapacityResponse>, Status> {
        let request = request.into_inner();
        answer("csi.v1.Controller/GetCapacity", "", async {
            let query = CapacityQuery {
                capabilities: convert::some_capabilities(&request.volume_capabilities)?,
                parameters: request.parameters,
                topology: request
                    .accessible_topology
                    .map(|topology| Topology(topology.segments)),
            };
            let (capacity, minimum) = self.operations.capacity(&query).await?;
            Ok(v1::GetCapacityResponse {
                available_capacity: capacity.available.to_wire(),
                maximum_volume_size: Some(capacity.largest.to_wire()),
                minimum_volume_size: Some(minimum.to_wire()),
            })
        })
        .await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::ControllerGetCapabilitiesResponse>, Status> {
        answer("csi.v1.Controller/ControllerGetCapabilities", "", async {
            let settings = self.operations.settings();
            Ok(v1::ControllerGetCapabilitiesResponse {
                capabilities: capabilities::controller(settings),
            })
        })
        .await
    }

    async fn create_snapshot(
        &self,
        request: Request<v1::CreateSnapshotRequest>,
    ) -> Result<Response<v1::CreateSnapshotResponse>, Status> {
        let request = request.into_inner();
        let name = request.name.clone();
        answer("csi.v1.Controller/CreateSnapshot", name, async {
            let request = CreateSnapshot {
                of: Reference::parse("source_volume_id", &request.source_volume_id)?,
                name: Name::parse("name", &request.name)?,
                parameters: request.parameters,
                topology: convert::requirement(request.accessibility_requirements),
            };
            let snapshot = self.operations.create_snapshot(request).await?;
            Ok(v1::CreateSnapshotResponse {
                snapshot: Some(convert::snapshot(&snapshot)?),
            })
        })
        .await
    }

    async fn delete_snapshot(
        &self,
        request: Request<v1::DeleteSnapshotRequest>,
    ) -> Result<Response<v1::DeleteSnapshotResponse>, Status> {
        let id = request.into_inner().snapshot_id;
        answer("csi.v1.Controller/DeleteSnapshot", &id, async {
            let snapshot = Reference::parse("snapshot_id", &id)?;
            self.operations.delete_snapshot(&snapshot).await?;
            Ok(v1::DeleteSnapshotResponse {})
        })
        .await
    }

    async fn list_snapshots(
        &self,
        request: Request<v1::ListSnapshotsRequest>,
    ) -> Result<Response<v1::ListSnapshotsResponse>, Status> {
        use v1::list_snapshots_response::Entry;
        let request = request.into_inner();
        let id = request.snapshot_id.clone();
        answer("csi.v1.Controller/ListSnapshots", id, async {
            let filter = SnapshotFilter {
                snapshot: convert::optional("snapshot_id", &request.snapshot_id)?,
                of: convert::optional("source_volume_id", &request.source_volume_id)?,
            };
            let page = convert::page(request.max_entries, request.starting_token)?;
            let listing = self.operations.list_snapshots(&filter, &page).await?;
            let entries: Result<_> = listing
                .entries
                .iter()
                .map(|snapshot| {
                    convert::snapshot(snapshot).map(|snapshot| Entry {
                        snapshot: Some(snapshot),
                    })
                })
                .collect();
            Ok(v1::ListSnapshotsResponse {
                entries: entries?,
                next_token: listing.next.unwrap_or_default(),
            })
        })
        .await
    }

    async fn get_snapshot(
        &self,
        request: Request<v1::GetSnapshotRequest>,
    ) -> Result<Response<v1::GetSnapshotResponse>, Status> {
        let id = request.into_inner().snapshot_id;
        answer("csi.v1.Controller/GetSnapshot", &id, async {
            let snapshot = Reference::parse("snapshot_id", &id)?;
            let snapshot = self.operations.get_snapshot(&snapshot).await?;
            Ok(v1::GetSnapshotResponse {
                snapshot: Some(convert::snapshot(&snapshot)?),
            })
        })
        .await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Result<Response<v1::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v1.Controller/ControllerExpandVolume", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            let size = convert::size_range(request.capacity_range.as_ref())?;
            let capability = convert::optional_capability(request.volume_capability.as_ref())?;
            let (size, node_expansion_required) = self
                .operations
                .expand_volume(&volume, size, capability)
                .await?;
            Ok(v1::ControllerExpandVolumeResponse {
                capacity_bytes: size.to_wire(),
                node_expansion_required,
            })
        })
        .await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Result<Response<v1::ControllerModifyVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v1.Controller/ControllerModifyVolume", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            self.operations
                .modify_volume(&volume, request.mutable_parameters)
                .await?;
            Ok(v1::ControllerModifyVolumeResponse {})
        })
        .await
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<v1::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<v1::ControllerListVolumeHealthResponse>, Status> {
        const METHOD: &str = "csi.v1.Controller/ControllerListVolumeHealth";
        let request = request.into_inner();
        answer(METHOD, "", async {
            let page = convert::page(request.max_entries, request.starting_token)?;
            let listing = self.operations.list_volume_health(&page).await?;
            Ok(v1::ControllerListVolumeHealthResponse {
                entries: listing.entries.iter().map(health::volume).collect(),
                next_token: listing.next.unwrap_or_default(),
            })
        })
        .await
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<v1::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<v1::ControllerGetVolumeHealthResponse>, Status> {
        let id = request.into_inner().volume_id;
        answer("csi.v1.Controller/ControllerGetVolumeHealth", &id, async {
            let volume = Reference::parse("volume_id", &id)?;
            let health = self.operations.volume_health(&volume).await?;
            Ok(v1::ControllerGetVolumeHealthResponse {
                volume_health: Some(health::volume(&health)),
            })
        })
        .await
    }
}

fn published(volume: &Volume) -> Vec<String> {
    volume.published.iter().map(ToString::to_string).collect()
}
