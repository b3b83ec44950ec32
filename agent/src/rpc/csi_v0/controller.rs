//! `csi.v0.Controller`: create, list and delete volumes and snapshots.

use drumlin_core::{
    Error, Result,
    ops::{CapacityQuery, CreateSnapshot, CreateVolume, PublishController, SnapshotFilter, Volume},
    types::{Map, Name, Reference, Requirement, Topology},
};
use drumlin_proto::csi::v0;
use tonic::{Request, Response, Status};

use super::{Front, capabilities, convert};
use crate::rpc::{csi_pre_v1, csi_v1::convert as common, respond::answer};

#[tonic::async_trait]
impl v0::controller_server::Controller for Front {
    async fn create_volume(
        &self,
        request: Request<v0::CreateVolumeRequest>,
    ) -> Result<Response<v0::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let name = request.name.clone();
        answer("csi.v0.Controller/CreateVolume", name, async {
            let topology = request.accessibility_requirements.as_ref();
            let range = request.capacity_range.as_ref();
            let request = CreateVolume {
                name: Name::parse("name", &request.name)?,
                size: common::size_range(range.map(csi_pre_v1::same).transpose()?.as_ref())?,
                capabilities: csi_pre_v1::capabilities(&request.volume_capabilities)?,
                source: convert::source(request.volume_content_source.as_ref())?,
                topology: common::requirement(topology.map(csi_pre_v1::same).transpose()?),
                parameters: request.parameters,
                mutable: Map::new(),
            };
            let volume = self.operations.create_volume(request).await?;
            Ok(v0::CreateVolumeResponse {
                volume: Some(convert::volume(&volume)?),
            })
        })
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<v0::DeleteVolumeRequest>,
    ) -> Result<Response<v0::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        answer("csi.v0.Controller/DeleteVolume", &id, async {
            let volume = Reference::parse("volume_id", &id)?;
            self.operations.delete_volume(&volume).await?;
            Ok(v0::DeleteVolumeResponse {})
        })
        .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v0::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v0::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v0.Controller/ControllerPublishVolume", id, async {
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
            let publish_info = self.operations.publish_controller(request).await?;
            Ok(v0::ControllerPublishVolumeResponse { publish_info })
        })
        .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v0::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v0::ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = &request.volume_id;
        answer("csi.v0.Controller/ControllerUnpublishVolume", id, async {
            let volume = Reference::parse("volume_id", id)?;
            csi_pre_v1::unpublish_controller(&self.operations, &volume, &request.node_id).await?;
            Ok(v0::ControllerUnpublishVolumeResponse {})
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<v0::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<v0::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        answer("csi.v0.Controller/ValidateVolumeCapabilities", id, async {
            let volume = Reference::parse("volume_id", &request.volume_id)?;
            let wanted = csi_pre_v1::validation(
                volume,
                &request.volume_capabilities,
                &request.volume_attributes,
            )?;
            let node = &self.operations.settings().node;
            let mut believed = request.accessible_topology.into_iter();
            let is_there = believed.all(|one| Topology(one.segments).includes(node));
            let problem = self.operations.validate_volume(&wanted).await?;
            let elsewhere =
                || format!("accessible_topology: the volume is accessible on node {node} only");
            let message = problem.or_else(|| (!is_there).then(elsewhere));
            let message = common::words(&message.unwrap_or_default());
            Ok(v0::ValidateVolumeCapabilitiesResponse {
                supported: message.is_empty(),
                message,
            })
        })
        .await
    }

    async fn list_volumes(
        &self,
        request: Request<v0::ListVolumesRequest>,
    ) -> Result<Response<v0::ListVolumesResponse>, Status> {
        use v0::list_volumes_response::Entry;
        let request = request.into_inner();
        answer("csi.v0.Controller/ListVolumes", "", async {
            let page = common::page(request.max_entries, request.starting_token)?;
            let listing = self.operations.list_volumes(&page).await?;
            let entry = |volume: &Volume| {
                let volume = Some(convert::volume(volume)?);
                Ok(Entry { volume })
            };
            let entries: Result<_> = listing.entries.iter().map(entry).collect();
            Ok(v0::ListVolumesResponse {
                entries: entries?,
                next_token: listing.next.unwrap_or_default(),
            })
        })
        .await
    }

    async fn get_capacity(
        &self,
        request: Request<v0::GetCapacityRequest>,
    ) -> Result<Response<v0::GetCapacityResponse>, Status> {
        let request = request.into_inner();
        answer("csi.v0.Controller/GetCapacity", "", async {
            let topology = request.accessible_topology;
            let query = CapacityQuery {
                capabilities: csi_pre_v1::some_capabilities(&request.volume_capabilities)?,
                parameters: request.parameters,
                topology: topology.map(|topology| Topology(topology.segments)),
            };
            let (capacity, _) = self.operations.capacity(&query).await?;
            Ok(v0::GetCapacityResponse {
                available_capacity: capacity.available.to_wire(),
            })
        })
        .await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<v0::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v0::ControllerGetCapabilitiesResponse>, Status> {
        answer("csi.v0.Controller/ControllerGetCapabilities", "", async {
            let settings = self.operations.settings();
            Ok(v0::ControllerGetCapabilitiesResponse {
                capabilities: capabilities::controller(settings),
            })
        })
        .await
    }

    async fn create_snapshot(
        &self,
        request: Request<v0::CreateSnapshotRequest>,
    ) -> Result<Response<v0::CreateSnapshotResponse>, Status> {
        let request = request.into_inner();
        let name = request.name.clone();
        answer("csi.v0.Controller/CreateSnapshot", name, async {
            let request = CreateSnapshot {
                of: Reference::parse("source_volume_id", &request.source_volume_id)?,
                name: Name::parse("name", &request.name)?,
                parameters: request.parameters,
                topology: Requirement::default(),
            };
            let snapshot = self.operations.create_snapshot(request).await?;
            Ok(v0::CreateSnapshotResponse {
                snapshot: Some(convert::created_snapshot(&snapshot)?),
            })
        })
        .await
    }

    async fn delete_snapshot(
        &self,
        request: Request<v0::DeleteSnapshotRequest>,
    ) -> Result<Response<v0::DeleteSnapshotResponse>, Status> {
        let id = request.into_inner().snapshot_id;
        answer("csi.v0.Controller/DeleteSnapshot", &id, async {
            let snapshot = Reference::parse("snapshot_id", &id)?;
            self.operations.delete_snapshot(&snapshot).await?;
            Ok(v0::DeleteSnapshotResponse {})
        })
        .await
    }

    async fn list_snapshots(
        &self,
        request: Request<v0::ListSnapshotsRequest>,
    ) -> Result<Response<v0::ListSnapshotsResponse>, Status> {
        use v0::list_snapshots_response::Entry;
        let request = request.into_inner();
        let id = request.snapshot_id.clone();
        answer("csi.v0.Controller/ListSnapshots", id, async {
            let filter = SnapshotFilter {
                snapshot: common::optional("snapshot_id", &request.snapshot_id)?,
                of: common::optional("source_volume_id", &request.source_volume_id)?,
            };
            let page = common::page(request.max_entries, request.starting_token)?;
            let listing = self.operations.list_snapshots(&filter, &page).await?;
            let entries = listing.entries.iter().map(|snapshot| {
                let snapshot = Some(convert::snapshot(snapshot)?);
                Ok(Entry { snapshot })
            });
            let entries: Result<_> = entries.collect();
            Ok(v0::ListSnapshotsResponse {
                entries: entries?,
                next_token: listing.next.unwrap_or_default(),
            })
        })
        .await
    }
}
