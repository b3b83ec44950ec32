//! `volumegroup.Controller`: create, get, list, modify and delete volume groups.

use drumlin_core::{
    Result,
    ops::{CreateVolumeGroup, VolumeGroup},
    types::{Name, Reference},
};
use drumlin_proto::volumegroup as wire;
use tonic::{Request, Response, Status};

use super::Front;
use crate::rpc::{csi_v1::convert, respond::answer};

#[tonic::async_trait]
impl wire::controller_server::Controller for Front {
    async fn create_volume_group(
        &self,
        request: Request<wire::CreateVolumeGroupRequest>,
    ) -> Result<Response<wire::CreateVolumeGroupResponse>, Status> {
        let request = request.into_inner();
        let name = request.name.clone();
        answer("volumegroup.Controller/CreateVolumeGroup", name, async {
            let request = CreateVolumeGroup {
                name: Name::parse("name", &request.name)?,
                members: convert::references("volume_ids", &request.volume_ids)?,
                parameters: request.parameters,
            };
            let group = self.operations.create_volume_group(request).await?;
            Ok(wire::CreateVolumeGroupResponse {
                volume_group: Some(message(&group)),
            })
        })
        .await
    }

    async fn modify_volume_group_membership(
        &self,
        request: Request<wire::ModifyVolumeGroupMembershipRequest>,
    ) -> Result<Response<wire::ModifyVolumeGroupMembershipResponse>, Status> {
        const METHOD: &str = "volumegroup.Controller/ModifyVolumeGroupMembership";
        let request = request.into_inner();
        answer(METHOD, &request.volume_group_id, async {
            let group = id(&request.volume_group_id)?;
            let members = convert::references("volume_ids", &request.volume_ids)?;
            let changed = self
                .operations
                .modify_group_members(&group, &members, &request.parameters)
                .await?;
            Ok(wire::ModifyVolumeGroupMembershipResponse {
                volume_group: Some(message(&changed)),
            })
        })
        .await
    }

    async fn delete_volume_group(
        &self,
        request: Request<wire::DeleteVolumeGroupRequest>,
    ) -> Result<Response<wire::DeleteVolumeGroupResponse>, Status> {
        let group = request.into_inner().volume_group_id;
        answer("volumegroup.Controller/DeleteVolumeGroup", &group, async {
            self.operations.delete_volume_group(&id(&group)?).await?;
            Ok(wire::DeleteVolumeGroupResponse {})
        })
        .await
    }

    async fn list_volume_groups(
        &self,
        request: Request<wire::ListVolumeGroupsRequest>,
    ) -> Result<Response<wire::ListVolumeGroupsResponse>, Status> {
        let request = request.into_inner();
        answer("volumegroup.Controller/ListVolumeGroups", "", async {
            let page = convert::page(request.max_entries, request.starting_token)?;
            let listing = self.operations.list_volume_groups(&page).await?;
            let entry = |group| wire::list_volume_groups_response::Entry {
                volume_group: Some(message(group)),
            };
            Ok(wire::ListVolumeGroupsResponse {
                entries: listing.entries.iter().map(entry).collect(),
                next_token: listing.next.unwrap_or_default(),
            })
        })
        .await
    }

    async fn controller_get_volume_group(
        &self,
        request: Request<wire::ControllerGetVolumeGroupRequest>,
    ) -> Result<Response<wire::ControllerGetVolumeGroupResponse>, Status> {
        const METHOD: &str = "volumegroup.Controller/ControllerGetVolumeGroup";
        let group = request.into_inner().volume_group_id;
        answer(METHOD, &group, async {
            let group = self.operations.get_volume_group(&id(&group)?).await?;
            Ok(wire::ControllerGetVolumeGroupResponse {
                volume_group: Some(message(&group)),
            })
        })
        .await
    }
}

fn id(text: &str) -> Result<Reference> {
    Reference::parse("volume_group_id", text)
}

fn message(group: &VolumeGroup) -> wire::VolumeGroup {
    wire::VolumeGroup {
        volume_group_id: group.handle.to_string(),
        volume_group_context: std::collections::BTreeMap::new(),
        volumes: group.members.iter().map(convert::volume).collect(),
    }
}
