//! Kind `VolumeGroup`: created empty, then given its members, and emptied before it is deleted.

use drumlin_crd::{MemberKind, MemberStatus, VolumeGroupSpec, VolumeGroupStatus, names};
use drumlin_proto::volumegroup::{
    ControllerGetVolumeGroupRequest, CreateVolumeGroupRequest, DeleteVolumeGroupRequest,
    ModifyVolumeGroupMembershipRequest, VolumeGroup,
};
use tonic::Code;

use super::{
    Halt, Pass, blocked, deletion::has_nothing, gone, group_members::state, stalled,
    volume::is_refusal, waiting,
};
use crate::{
    client::{Failure, PATIENCE, call, gone_is_fine},
    record::{Body, Of, Verdict},
};

impl Pass<'_> {
    /// Reconciles a group with its manifest.
    pub(crate) async fn group(&mut self) -> Result<Verdict, Halt> {
        if self.record.is_absent() {
            return self.destroy_group().await;
        }
        self.record.drumlin.destroyed = false;
        self.check_members()?;
        if self.group_parts().1.group_handle.is_none() {
            self.take_up().await?;
        }
        self.create_group().await?;
        let group = match self.look_at_group().await? {
            Some(group) => group,
            None => self.make_group_again().await?,
        };
        self.recall_members(&group);
        let mut members = self.wanted_members(&self.record);
        self.check_count(&members)?;
        self.check_nodes(&members)?;
        let group = self.follow_members(group, &mut members).await?;
        self.tell_members(&group, members);
        self.judge_members()
    }

    pub(super) fn group_parts(&self) -> (&VolumeGroupSpec, &VolumeGroupStatus) {
        match &self.record.body {
            Body::Group(Of { spec, status }) => (spec, status),
            _ => unreachable!("a group's pass has a group's record"),
        }
    }

    pub(super) fn group_status_mut(&mut self) -> &mut VolumeGroupStatus {
        match &mut self.record.body {
            Body::Group(Of { status, .. }) => status,
            _ => unreachable!("a group's pass has a group's record"),
        }
    }

    /// Rejects `PersistentVolumeClaims` in manifests of files.
    fn check_members(&self) -> Result<(), Halt> {
        if self.record.served().is_some() {
            return Ok(());
        }
        let (spec, _) = self.group_parts();
        let mut members = spec.members.iter().flatten().enumerate();
        let claim = members.find(|(_, member)| member.kind != MemberKind::Volume);
        let Some((index, claim)) = claim else {
            return Ok(());
        };
        let book = &self.record.drumlin;
        Err(stalled(
            "Unsupported",
            format!(
                "spec.members.{index}.kind: {} {}: PersistentVolumeClaims exist only in a cluster; use kind Volume ({}:{})",
                claim.kind, claim.name, book.file, book.line
            ),
        ))
    }

    /// A group that selects too many volumes keeps its present members: there is no rule which of them to drop.
    fn check_count(&mut self, members: &[MemberStatus]) -> Result<(), Halt> {
        let meant = members.iter();
        let meant = meant.filter(|member| member.state != state::OTHER_NODE);
        let count = meant.count();
        if count <= names::MOST_MEMBERS {
            return Ok(());
        }
        self.group_status_mut().desired_count = u32::try_from(count).unwrap_or(u32::MAX);
        Err(stalled(
            "TooManyMembers",
            format!(
                "group selects more than {} volumes and claims, the maximum for a group; narrow spec.selector",
                names::MOST_MEMBERS
            ),
        ))
    }

    /// Waits for members whose handles still contain another name of this node: with those handles they would leave the
    /// group.
    fn check_nodes(&self, members: &[MemberStatus]) -> Result<(), Halt> {
        let is_elsewhere = |member: &&MemberStatus| {
            let handle = member.volume_handle.as_deref();
            let node = handle.and_then(names::node_of);
            node.is_some_and(|node| node != self.agent.node)
        };
        match members.iter().find(is_elsewhere) {
            Some(member) if self.record.is_of_file() => Err(waiting(
                "MembersPending",
                format!(
                    "{} {}: its handle has another name of this node; waiting for it to be updated",
                    member.kind, member.name
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Creates the group empty, so that a retry is idempotent even if its members change meanwhile.
    async fn create_group(&mut self) -> Result<(), Halt> {
        if self.group_parts().1.group_handle.is_some() {
            return Ok(());
        }
        let key = self.record.key();
        let name = names::csi_name("dvg", &key.kind, (&key.namespace, &key.name), None);
        if self.group_parts().1.csi_name.is_none() {
            self.add_finalizer().await?;
            self.group_status_mut().csi_name = Some(name.clone());
            self.save("group.create.intended")?;
        }
        let mut parameters = self.group_parts().0.parameters.clone();
        parameters.extend(self.owner());
        let request = CreateVolumeGroupRequest {
            name,
            parameters,
            ..CreateVolumeGroupRequest::default()
        };
        let mut groups = self.client.groups();
        let answer = groups.create_volume_group(request);
        let answer = call("CreateVolumeGroup", PATIENCE, answer).await;
        if let Err(failure) = &answer
            && is_refusal(failure.code)
        {
            // Nothing was created, so the next attempt may use the then current manifest.
            self.group_status_mut().csi_name = None;
        }
        let answer = answer?;
        self.point("group.create.called");
        let Some(group) = answer.volume_group else {
            return Err(stalled(
                "InvalidAnswer",
                "CreateVolumeGroup returned no group".to_owned(),
            ));
        };
        self.group_status_mut().group_handle = Some(group.volume_group_id);
        self.record.is_found();
        self.save("group.create.recorded")
    }

    fn group_handle(&self) -> String {
        let handle = self.group_parts().1.group_handle.clone();
        handle.unwrap_or_default()
    }

    /// The group as the agent has it; `None` if it does not exist.
    async fn look_at_group(&self) -> Result<Option<VolumeGroup>, Failure> {
        let request = ControllerGetVolumeGroupRequest {
            volume_group_id: self.group_handle(),
            ..ControllerGetVolumeGroupRequest::default()
        };
        let mut groups = self.client.groups();
        let answer = groups.controller_get_volume_group(request);
        match call("ControllerGetVolumeGroup", PATIENCE, answer).await {
            Ok(answer) => Ok(answer.volume_group),
            Err(failure) if failure.code == Code::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Recreates a lost group; no volume data depends on it.
    async fn make_group_again(&mut self) -> Result<VolumeGroup, Halt> {
        self.forget_group();
        self.save("group.lost")?;
        self.create_group().await?;
        let group = self.look_at_group().await?;
        group.ok_or_else(|| {
            waiting(
                "Creating",
                "group was created and no longer exists; creating it again".to_owned(),
            )
        })
    }

    fn forget_group(&mut self) {
        self.record.drumlin.applied = Vec::new();
        let status = self.group_status_mut();
        status.group_handle = None;
        status.csi_name = None;
        status.members = Vec::new();
        status.member_count = 0;
        status.desired_count = 0;
    }

    /// Sets the members of the group to exactly these volumes.
    pub(super) async fn modify_group(
        &self,
        volume_ids: Vec<String>,
    ) -> Result<VolumeGroup, Failure> {
        let request = ModifyVolumeGroupMembershipRequest {
            volume_group_id: self.group_handle(),
            volume_ids,
            ..ModifyVolumeGroupMembershipRequest::default()
        };
        let mut groups = self.client.groups();
        let answer = groups.modify_volume_group_membership(request);
        let answer = call("ModifyVolumeGroupMembership", PATIENCE, answer).await?;
        Ok(answer.volume_group.unwrap_or_default())
    }

    async fn destroy_group(&mut self) -> Result<Verdict, Halt> {
        let policy = self.record.deletion_policy();
        if self.is_to_be_destroyed() {
            if self.group_parts().1.group_handle.is_none() {
                self.take_up().await?;
                self.confirm_end().await?;
            }
            if !policy.deletes() {
                self.tell_released().await?;
            } else if self.record.is_begun() {
                // A create that may be incomplete is completed first: only then its handle is known.
                match self.create_group().await {
                    Err(Halt::Failed(failure)) if has_nothing(failure.code) => {}
                    other => other?,
                }
                if self.group_parts().1.group_handle.is_some() {
                    self.empty_group().await?;
                    self.delete_group().await?;
                }
                self.tell_volumes(&[]);
                self.forget_group();
            }
            self.record.drumlin.destroyed = true;
            self.save("group.destroyed")?;
            self.shared.wake_waiting();
            self.shared.wake_groups(&self.record.key());
        }
        Ok(gone(policy))
    }

    /// Removes all members, also those that other callers added: whether a group's deletion destroys them is a setting
    /// of the agent.
    async fn empty_group(&self) -> Result<(), Halt> {
        let group = self.look_at_group().await?.unwrap_or_default();
        if group.volumes.is_empty() {
            return Ok(());
        }
        let emptied = self.modify_group(Vec::new()).await.map_err(blocked)?;
        self.point("group.emptied");
        if emptied.volumes.is_empty() {
            return Ok(());
        }
        Err(waiting(
            "DeletionBlocked",
            format!(
                "{} volumes are still members of the group",
                emptied.volumes.len()
            ),
        ))
    }

    async fn delete_group(&self) -> Result<(), Halt> {
        let request = DeleteVolumeGroupRequest {
            volume_group_id: self.group_handle(),
            ..DeleteVolumeGroupRequest::default()
        };
        let mut groups = self.client.groups();
        let deleted = groups.delete_volume_group(request);
        let deleted = call("DeleteVolumeGroup", PATIENCE, deleted).await;
        gone_is_fine(deleted).map_err(blocked)?;
        self.point("group.delete.called");
        Ok(())
    }
}
