//! What the calls of groups would be answered.

use drumlin_proto::{
    csi::v1,
    volumegroup::{
        ControllerGetVolumeGroupRequest, ControllerGetVolumeGroupResponse,
        CreateVolumeGroupResponse, DeleteVolumeGroupRequest, ModifyVolumeGroupMembershipRequest,
        ModifyVolumeGroupMembershipResponse, VolumeGroup,
    },
};
use tonic::Status;

use super::{Answer, Planned, read};

impl Planned {
    /// Calls about groups.
    pub(super) fn group_call(
        &mut self,
        method: &str,
        message: &[u8],
        node: &str,
    ) -> Result<Option<Answer>, Status> {
        let answer = match method {
            "/volumegroup.Controller/CreateVolumeGroup" => {
                self.note("CreateVolumeGroup");
                let id = self.handle(node, "groups");
                self.groups.insert(id.clone(), Vec::new());
                Answer::message(&CreateVolumeGroupResponse {
                    volume_group: Some(group(id, &[])),
                })
            }
            "/volumegroup.Controller/ModifyVolumeGroupMembership" => {
                self.note("ModifyVolumeGroupMembership");
                let request: ModifyVolumeGroupMembershipRequest = read(message)?;
                let (id, members) = (request.volume_group_id, request.volume_ids);
                let volume_group = Some(group(id.clone(), &members));
                self.groups.insert(id, members);
                Answer::message(&ModifyVolumeGroupMembershipResponse { volume_group })
            }
            "/volumegroup.Controller/DeleteVolumeGroup" => {
                self.note("DeleteVolumeGroup");
                let request: DeleteVolumeGroupRequest = read(message)?;
                self.deleted.insert(request.volume_group_id);
                Answer::empty()
            }
            "/volumegroup.Controller/ControllerGetVolumeGroup" => {
                let request: ControllerGetVolumeGroupRequest = read(message)?;
                self.find(&request.volume_group_id)?;
                let Some(members) = self.groups.get(&request.volume_group_id) else {
                    return Ok(None);
                };
                let volume_group = Some(group(request.volume_group_id, members));
                Answer::message(&ControllerGetVolumeGroupResponse { volume_group })
            }
            _ => return Ok(None),
        };
        Ok(Some(answer))
    }
}

fn group(volume_group_id: String, members: &[String]) -> VolumeGroup {
    let volume = |id: &String| v1::Volume {
        volume_id: id.clone(),
        ..v1::Volume::default()
    };
    VolumeGroup {
        volume_group_id,
        volumes: members.iter().map(volume).collect(),
        ..VolumeGroup::default()
    }
}
