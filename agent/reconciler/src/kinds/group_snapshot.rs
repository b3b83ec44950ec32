//! Kind `GroupSnapshot`: created once, of all members that the group has then, and deleted as a whole.

use std::collections::BTreeSet;

use drumlin_crd::{
    GroupSnapshotMember, GroupSnapshotSpec, GroupSnapshotStatus, MemberSnapshot, names,
};
use drumlin_proto::csi::v1::{
    self, CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest,
    GetVolumeGroupSnapshotRequest,
};
use k8s_openapi::jiff::Timestamp;
use tonic::Code;

use super::{Halt, Pass, blocked, gone, ready, stalled, volume::is_refusal, waiting};
use crate::{
    client::{Failure, PATIENCE, call, gone_is_fine},
    count::counted,
    inventory::{rfc3339, size},
    record::{Body, Of, State, Verdict},
};

impl Pass<'_> {
    /// Reconciles a group snapshot with its manifest.
    pub(crate) async fn group_snapshot(&mut self) -> Result<Verdict, Halt> {
        if self.record.is_absent() {
            return self.destroy_group_snapshot().await;
        }
        self.record.drumlin.destroyed = false;
        if !self.record.is_begun_here() {
            self.take_up().await?;
        }
        if self.is_doubted {
            self.look_for_group_snapshot().await?;
        }
        if self.record.drumlin.lost {
            return Err(stalled(
                "SnapshotLost",
                "group snapshot or a member of it was created and no longer exists; its point in time cannot be recreated: restore its disk, or delete this object and create a new group snapshot".to_owned(),
            ));
        }
        if !self.together().1.ready_to_use {
            self.create_group_snapshot().await?;
        }
        let (spec, status) = self.together();
        Ok(ready(
            "SnapshotReady",
            format!(
                "{} of {} at {}",
                counted(status.member_count, "member"),
                spec.group_name,
                status.creation_time.clone().unwrap_or_default()
            ),
        ))
    }

    fn together(&self) -> (&GroupSnapshotSpec, &GroupSnapshotStatus) {
        match &self.record.body {
            Body::GroupSnapshot(Of { spec, status }) => (spec, status),
            _ => unreachable!("a group snapshot's pass has a group snapshot's record"),
        }
    }

    fn together_mut(&mut self) -> &mut GroupSnapshotStatus {
        match &mut self.record.body {
            Body::GroupSnapshot(Of { status, .. }) => status,
            _ => unreachable!("a group snapshot's pass has a group snapshot's record"),
        }
    }

    /// The current members of the group, if it matches its manifest.
    fn members_now(&self) -> Result<Vec<MemberSnapshot>, Halt> {
        let name = &self.together().0.group_name;
        let missing = |what: &str| {
            waiting(
                "DependencyNotFound",
                format!("waiting for group {name}, which {what}"),
            )
        };
        let group = self
            .sibling("VolumeGroup", name)
            .ok_or_else(|| missing("does not exist"))?;
        if !group.is_ready() || !group.is_settled() {
            return Err(missing("is not ready"));
        }
        // The group may not have been reconciled since a volume was labelled or created.
        if !self.has_wanted_members(&group) {
            return Err(missing("has a membership change pending"));
        }
        let Body::Group(Of { status, .. }) = &group.body else {
            return Err(missing("does not exist"));
        };
        let members = status.members.iter().filter_map(|member| {
            Some(MemberSnapshot {
                kind: member.kind.clone(),
                name: member.name.clone(),
                volume_handle: member.volume_handle.clone()?,
                ..MemberSnapshot::default()
            })
        });
        let members: Vec<MemberSnapshot> = members.collect();
        if members.is_empty() {
            return Err(missing("has no members"));
        }
        Ok(members)
    }

    async fn create_group_snapshot(&mut self) -> Result<(), Halt> {
        let key = self.record.key();
        let incarnation = self.record.drumlin.incarnation.clone();
        let known = self.together().1.csi_name.clone();
        let name = known.unwrap_or_else(|| {
            let name = (&*key.namespace, &*key.name);
            names::csi_name("gsnap", &key.kind, name, Some(&incarnation))
        });
        if self.together().1.members.is_empty() {
            let members = self.members_now()?;
            for member in &members {
                self.check_looked(&member.volume_handle).await?;
            }
            self.add_finalizer().await?;
            let status = self.together_mut();
            status.members = members;
            status.csi_name = Some(name.clone());
            // The list is fixed from here on, so that a retry is idempotent even if the group changes.
            self.save("group-snapshot.create.intended")?;
        }
        let (spec, status) = self.together();
        let mut parameters = spec.parameters.clone();
        parameters.extend(self.owner());
        let frozen: Vec<String> = status
            .members
            .iter()
            .map(|member| member.volume_handle.clone())
            .collect();
        let request = CreateVolumeGroupSnapshotRequest {
            name,
            source_volume_ids: frozen.clone(),
            parameters,
            ..CreateVolumeGroupSnapshotRequest::default()
        };
        let mut groups = self.client.group_controller();
        let answer = groups.create_volume_group_snapshot(request);
        let answer = call("CreateVolumeGroupSnapshot", PATIENCE, answer).await;
        if let Err(failure) = &answer
            && takes_nothing(failure.code)
            && self.together().1.group_snapshot_handle.is_none()
        {
            // No snapshot was created, so the next attempt may use the then current members.
            self.together_mut().members = Vec::new();
        }
        let answer = answer?;
        self.point("group-snapshot.create.called");
        let Some(taken) = answer.group_snapshot else {
            return Err(stalled(
                "InvalidAnswer",
                "CreateVolumeGroupSnapshot returned no group snapshot".to_owned(),
            ));
        };
        let sources = taken.snapshots.iter();
        let sources: BTreeSet<&String> = sources.map(|member| &member.source_volume_id).collect();
        let is_asked_for = sources == frozen.iter().collect();
        // The handle is saved even if the answer is wrong: it is needed to delete the snapshot.
        let is_first = self.together().1.group_snapshot_handle.is_none();
        self.take_over(&taken);
        self.together_mut().ready_to_use &= is_asked_for;
        self.record.is_found();
        self.save("group-snapshot.create.recorded")?;
        if !is_asked_for {
            return Err(stalled(
                "InvalidAnswer",
                "CreateVolumeGroupSnapshot returned other volumes than requested".to_owned(),
            ));
        }
        if is_first {
            self.compare_group().await;
        }
        self.tell_group();
        if self.together().1.ready_to_use {
            return Ok(());
        }
        Err(waiting(
            "Creating",
            "group snapshot created, but not ready yet".to_owned(),
        ))
    }

    /// Takes over the agent's description of the group snapshot and its members.
    fn take_over(&mut self, taken: &v1::VolumeGroupSnapshot) {
        let status = self.together_mut();
        for member in &mut status.members {
            let mut snapshots = taken.snapshots.iter();
            let snapshot =
                snapshots.find(|snapshot| snapshot.source_volume_id == member.volume_handle);
            if let Some(snapshot) = snapshot {
                member.snapshot_handle = Some(snapshot.snapshot_id.clone());
                member.restore_size = Some(size(snapshot.size_bytes));
                member.ready_to_use = snapshot.ready_to_use;
            }
        }
        status.member_count = u32::try_from(status.members.len()).unwrap_or(u32::MAX);
        status.group_snapshot_handle = Some(taken.group_snapshot_id.clone());
        status.creation_time = taken.creation_time.as_ref().and_then(rfc3339);
        status.ready_to_use = taken.ready_to_use;
    }

    /// Tells if the group has other members by now than the snapshot, which was asked for those that it had then.
    async fn compare_group(&mut self) {
        let (spec, status) = self.together();
        let group = self.sibling("VolumeGroup", &spec.group_name);
        let Some(Body::Group(Of { status: now, .. })) = group.as_ref().map(|group| &group.body)
        else {
            return;
        };
        let has = now.members.iter();
        let has = has.filter_map(|member| member.volume_handle.as_ref());
        let shown = status.members.iter().map(|member| &member.volume_handle);
        if has.collect::<BTreeSet<_>>() == shown.collect() {
            return;
        }
        let event = Verdict {
            state: State::Ready,
            reason: "MembershipChangedDuringSnapshot",
            message:
                "the group has other members by now; the snapshot has those of its first attempt"
                    .to_owned(),
        };
        tracing::info!(object = %self.record.key(), reason = event.reason, "group membership changed during the snapshot");
        self.record.note_event(&event);
        if let Some(source) = self.shared.object_source()
            && let Err(error) = source.publish(&self.record, &event).await
        {
            tracing::debug!(object = %self.record.key(), error = %error, "event could not be published");
        }
    }

    /// Writes the time of the last snapshot to the status of the group.
    fn tell_group(&self) {
        let (spec, status) = self.together();
        let Some(group) = self.sibling("VolumeGroup", &spec.group_name) else {
            return;
        };
        let Some(time) = status.creation_time.clone() else {
            return;
        };
        let instant = |time: &String| time.parse::<Timestamp>().ok();
        let told = self
            .shared
            .edit(&group.key(), |record| match &mut record.body {
                Body::Group(Of { status, .. })
                    if status.last_snapshot_time.as_ref().and_then(instant) < instant(&time) =>
                {
                    status.last_snapshot_time = Some(time);
                    true
                }
                _ => false,
            });
        if let Err(error) = told {
            tracing::warn!(object = %group.key(), error = %error, "last snapshot time of the group could not be written");
        }
    }

    /// Checks that the group snapshot still exists, with all its members.
    async fn look_for_group_snapshot(&mut self) -> Result<(), Halt> {
        let Some(group_snapshot_id) = self.together().1.group_snapshot_handle.clone() else {
            return Ok(());
        };
        if !self.together().1.ready_to_use && !self.record.drumlin.lost {
            // It was never complete yet: the retried create finds its state.
            return Ok(());
        }
        let request = GetVolumeGroupSnapshotRequest {
            group_snapshot_id,
            snapshot_ids: self.member_snapshots(),
            ..GetVolumeGroupSnapshotRequest::default()
        };
        let mut groups = self.client.group_controller();
        let answer = groups.get_volume_group_snapshot(request);
        let is_lost = match call("GetVolumeGroupSnapshot", PATIENCE, answer).await {
            Ok(answer) => answer
                .group_snapshot
                .is_none_or(|found| !found.ready_to_use),
            Err(failure) if failure.code == Code::NotFound => true,
            Err(failure) => return Err(failure.into()),
        };
        // Saved together with the conditions; after a restart before that, the next check finds it again.
        if is_lost != self.record.drumlin.lost {
            self.record.drumlin.lost = is_lost;
            self.together_mut().ready_to_use = !is_lost;
        }
        Ok(())
    }

    fn member_snapshots(&self) -> Vec<String> {
        let members = self.together().1.members.iter();
        members
            .filter_map(|member| member.snapshot_handle.clone())
            .collect()
    }

    /// Lists the members at the agent, for a group snapshot whose members are not all known here.
    async fn listed_members(&self, group_snapshot_id: &str) -> Result<Vec<String>, Failure> {
        let mut members = Vec::new();
        let mut request = v1::ListSnapshotsRequest::default();
        loop {
            let mut controller = self.client.controller();
            let answer = controller.list_snapshots(request.clone());
            let answer = call("ListSnapshots", PATIENCE, answer).await?;
            let snapshots = answer
                .entries
                .into_iter()
                .filter_map(|entry| entry.snapshot);
            let own = snapshots.filter(|found| found.group_snapshot_id == group_snapshot_id);
            members.extend(own.map(|found| found.snapshot_id));
            if answer.next_token.is_empty() {
                return Ok(members);
            }
            request.starting_token = answer.next_token;
        }
    }

    async fn destroy_group_snapshot(&mut self) -> Result<Verdict, Halt> {
        let policy = self.record.deletion_policy();
        if self.is_to_be_destroyed() {
            if !self.record.is_begun_here() {
                self.take_up().await?;
                self.confirm_end().await?;
            }
            let is_begun = !self.together().1.members.is_empty();
            if policy.deletes() && is_begun {
                self.no_restore_is_running()?;
                self.end_making().await?;
                if let Some(id) = self.together().1.group_snapshot_handle.clone() {
                    self.delete_group_snapshot(id).await?;
                }
                *self.together_mut() = GroupSnapshotStatus::default();
                self.record.drumlin.lost = false;
            } else {
                self.tell_released().await?;
            }
            self.record.drumlin.destroyed = true;
            self.save("group-snapshot.destroyed")?;
            self.shared.wake_waiting();
        }
        Ok(gone(policy))
    }

    /// A create with an unknown outcome is completed before the deletion, or its snapshots would be leaked.
    async fn end_making(&mut self) -> Result<(), Halt> {
        if self.together().1.group_snapshot_handle.is_some() {
            return Ok(());
        }
        match self.create_group_snapshot().await {
            Err(Halt::Failed(failure)) if takes_nothing(failure.code) => Ok(()),
            // It may not be ready yet, or not match the request, but its handle is known and it can be deleted.
            Err(Halt::Waiting(_)) if self.together().1.group_snapshot_handle.is_some() => Ok(()),
            other => other,
        }
    }

    async fn delete_group_snapshot(&self, group_snapshot_id: String) -> Result<(), Halt> {
        let mut snapshot_ids = self.member_snapshots();
        if snapshot_ids.len() < self.together().1.members.len() {
            snapshot_ids = self.listed_members(&group_snapshot_id).await?;
        }
        let request = DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id,
            snapshot_ids,
            ..DeleteVolumeGroupSnapshotRequest::default()
        };
        let mut groups = self.client.group_controller();
        let deleted = groups.delete_volume_group_snapshot(request);
        let deleted = call("DeleteVolumeGroupSnapshot", PATIENCE, deleted).await;
        gone_is_fine(deleted).map_err(blocked)?;
        self.point("group-snapshot.delete.called");
        Ok(())
    }
}

/// Returns true if the failure means that no snapshot was created. Unlike one volume, several volumes may have no
/// common point in time.
fn takes_nothing(code: Code) -> bool {
    is_refusal(code) || code == Code::FailedPrecondition
}

/// Finds a member of a group snapshot by its name, or by the handle of its volume if it had no name.
///
/// # Errors
/// How to select one if a volume and a claim have the same name.
pub(super) fn member<'a>(
    status: &'a GroupSnapshotStatus,
    source: &GroupSnapshotMember,
) -> Result<Option<&'a MemberSnapshot>, String> {
    let is_meant = |found: &&MemberSnapshot| {
        let kind = source.member_kind.map(|kind| kind.to_string());
        let is_called = found.name == source.member || found.volume_handle == source.member;
        is_called && kind.is_none_or(|kind| kind == found.kind)
    };
    let mut members = status.members.iter().filter(is_meant);
    match (members.next(), members.next()) {
        (Some(one), Some(other)) => Err(format!(
            "a {} and a {} are both named {}; choose one with memberKind",
            one.kind, other.kind, source.member
        )),
        (found, _) => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drumlin_crd::MemberKind;

    #[test]
    fn a_member_is_found_by_its_kind_where_a_volume_and_a_claim_have_one_name() {
        let snapshot = |kind: MemberKind, name: &str, handle: &str| MemberSnapshot {
            kind: kind.to_string(),
            name: name.to_owned(),
            volume_handle: handle.to_owned(),
            ..MemberSnapshot::default()
        };
        let claim = MemberKind::PersistentVolumeClaim;
        let status = GroupSnapshotStatus {
            members: vec![
                snapshot(MemberKind::Volume, "data", "n/c/1"),
                snapshot(claim, "data", "n/c/2"),
                snapshot(claim, "wal", "n/c/3"),
                snapshot(MemberKind::Volume, "", "n/c/4"),
            ],
            ..GroupSnapshotStatus::default()
        };
        let found = |name: &str, member_kind| {
            let source = GroupSnapshotMember {
                name: "moment".to_owned(),
                member: name.to_owned(),
                member_kind,
            };
            member(&status, &source).map(|found| found.map(|found| found.volume_handle.clone()))
        };
        let is = |handle: &str| Ok(Some(handle.to_owned()));
        assert_eq!(found("wal", None), is("n/c/3"));
        assert_eq!(found("n/c/4", None), is("n/c/4"));
        assert_eq!(found("data", Some(claim)), is("n/c/2"));
        assert_eq!(found("data", Some(MemberKind::Volume)), is("n/c/1"));
        assert_eq!(found("wal", Some(MemberKind::Volume)), Ok(None));
        let why = found("data", None).unwrap_err();
        assert!(why.contains("memberKind"), "{why}");
    }
}
