//! What the calls of volumes and their mounts would be answered.

use drumlin_proto::{
    csi::v1::{self, volume_capability::AccessType},
    drumlin::v1::TrashVolumeRequest,
};
use tonic::Status;

use super::{Answer, Planned, read};

impl Planned {
    /// Calls that change a volume.
    pub(super) fn volume_call(
        &mut self,
        method: &str,
        message: &[u8],
        node: &str,
    ) -> Result<Option<Answer>, Status> {
        let answer = match method {
            "/csi.v1.Controller/CreateVolume" => {
                self.note("CreateVolume");
                let request: v1::CreateVolumeRequest = read(message)?;
                let class = request.parameters.get("class");
                let volume = v1::Volume {
                    volume_id: self.handle(node, class.map_or("default", |class| class)),
                    capacity_bytes: required(request.capacity_range.as_ref()),
                    ..v1::Volume::default()
                };
                self.volumes
                    .insert(volume.volume_id.clone(), volume.capacity_bytes);
                Answer::message(&v1::CreateVolumeResponse {
                    volume: Some(volume),
                })
            }
            "/csi.v1.Controller/ControllerExpandVolume" => {
                self.note("ControllerExpandVolume");
                let request: v1::ControllerExpandVolumeRequest = read(message)?;
                let capacity_bytes = required(request.capacity_range.as_ref());
                self.volumes.insert(request.volume_id, capacity_bytes);
                let capability = request.volume_capability.and_then(|one| one.access_type);
                Answer::message(&v1::ControllerExpandVolumeResponse {
                    capacity_bytes,
                    node_expansion_required: matches!(capability, Some(AccessType::Mount(_))),
                })
            }
            "/csi.v1.Controller/DeleteVolume" => {
                self.note("DeleteVolume");
                let request: v1::DeleteVolumeRequest = read(message)?;
                self.deleted.insert(request.volume_id);
                Answer::empty()
            }
            "/drumlin.v1.Trash/TrashVolume" => {
                self.note("TrashVolume");
                let request: TrashVolumeRequest = read(message)?;
                self.deleted.insert(request.volume_id);
                Answer::empty()
            }
            "/drumlin.v1.Inventory/SetOwner" => {
                self.note("SetOwner");
                Answer::empty()
            }
            _ => return Ok(None),
        };
        Ok(Some(answer))
    }

    /// Calls that read a volume that would be created or changed.
    pub(super) fn volume_read(
        &self,
        method: &str,
        message: &[u8],
    ) -> Result<Option<Answer>, Status> {
        let answer = match method {
            "/csi.v1.Controller/ControllerGetVolume" => {
                let request: v1::ControllerGetVolumeRequest = read(message)?;
                self.find(&request.volume_id)?;
                self.volumes.get(&request.volume_id).map(|bytes| {
                    let volume = v1::Volume {
                        volume_id: request.volume_id.clone(),
                        capacity_bytes: *bytes,
                        ..v1::Volume::default()
                    };
                    Answer::message(&v1::ControllerGetVolumeResponse {
                        volume: Some(volume),
                        ..v1::ControllerGetVolumeResponse::default()
                    })
                })
            }
            "/csi.v1.Controller/ValidateVolumeCapabilities" => {
                let request: v1::ValidateVolumeCapabilitiesRequest = read(message)?;
                let is_planned = self.volumes.contains_key(&request.volume_id);
                is_planned.then(confirmed)
            }
            _ => None,
        };
        Ok(answer)
    }

    /// Calls about mounts, whose answers say nothing.
    pub(super) fn node_call(&mut self, method: &str) -> Option<Answer> {
        let rpc = match method {
            "/csi.v1.Controller/ControllerPublishVolume" => "ControllerPublishVolume",
            "/csi.v1.Controller/ControllerUnpublishVolume" => "ControllerUnpublishVolume",
            "/csi.v1.Node/NodeStageVolume" => "NodeStageVolume",
            "/csi.v1.Node/NodeUnstageVolume" => "NodeUnstageVolume",
            "/csi.v1.Node/NodePublishVolume" => "NodePublishVolume",
            "/csi.v1.Node/NodeUnpublishVolume" => "NodeUnpublishVolume",
            "/csi.v1.Node/NodeExpandVolume" => "NodeExpandVolume",
            _ => return None,
        };
        self.note(rpc);
        Some(Answer::empty())
    }
}

/// A volume has the capabilities that it is asked about.
pub(super) fn confirmed() -> Answer {
    let confirmed = v1::validate_volume_capabilities_response::Confirmed::default();
    Answer::message(&v1::ValidateVolumeCapabilitiesResponse {
        confirmed: Some(confirmed),
        ..v1::ValidateVolumeCapabilitiesResponse::default()
    })
}

/// The bytes that a caller requires.
fn required(range: Option<&v1::CapacityRange>) -> i64 {
    range.map_or(0, |range| range.required_bytes)
}
