//! The members of a group: a three-way merge of the manifest, the members applied before, and the changes of other
//! callers, which stay.

use std::collections::HashSet;

use drumlin_crd::{GroupMember, MemberKind, MemberStatus, ObjectKey};
use drumlin_proto::volumegroup::VolumeGroup;
use tonic::Code;

use super::{Halt, Pass, ready, stalled, waiting};
use crate::{
    client::Failure,
    record::{Body, Of, Record, Verdict},
};

/// The states of a member.
pub(crate) mod state {
    /// The member is in the group.
    pub(crate) const JOINED: &str = "Joined";
    /// Its volume is not created yet.
    pub(crate) const PENDING: &str = "Pending";
    /// No manifest has this name, or its volume does not exist.
    pub(crate) const NOT_FOUND: &str = "NotFound";
    /// It belongs to another node.
    pub(crate) const OTHER_NODE: &str = "OtherNode";
    /// It cannot join: it is in another group, or another group that selects it takes precedence.
    pub(crate) const CONFLICT: &str = "Conflict";
    /// Another caller added it to the group.
    pub(crate) const FOREIGN: &str = "Foreign";
}

/// Returns true for a member that is in the group, whoever added it.
pub(crate) fn is_inside(member: &MemberStatus) -> bool {
    [state::JOINED, state::FOREIGN].contains(&&*member.state)
}

impl Pass<'_> {
    /// The members that a group's manifest selects, with the state of each.
    pub(super) fn wanted_members(&self, group: &Record) -> Vec<MemberStatus> {
        let Body::Group(Of { spec, .. }) = &group.body else {
            return Vec::new();
        };
        let wanted = match &spec.members {
            Some(members) => members.clone(),
            None => self.selected(group),
        };
        let rivals = self.rivals(group);
        let member = |wanted: &GroupMember| match wanted.kind {
            MemberKind::Volume => self.member(&wanted.name, group, &rivals),
            MemberKind::PersistentVolumeClaim => self.claim(&wanted.name, group, &rivals),
        };
        once(wanted.iter().map(member).collect())
    }

    /// The volumes and claims that a group's selector matches, without those that are being deleted.
    fn selected(&self, group: &Record) -> Vec<GroupMember> {
        let node = &self.agent.node;
        let is_meant = |record: &Record| {
            record.node().is_none_or(|named| named == node)
                && !record.is_absent()
                && group.wants(record)
        };
        let keys = self.shared.keys_of(is_meant);
        let volumes = keys.into_iter().map(|key| GroupMember {
            kind: MemberKind::Volume,
            name: key.name,
        });
        let claims = group.candidates().iter().map(|candidate| GroupMember {
            kind: MemberKind::PersistentVolumeClaim,
            name: candidate.name.clone(),
        });
        let mut members: Vec<GroupMember> = volumes.chain(claims).collect();
        members.sort();
        members
    }

    /// The state of a claim, as resolved by the controller.
    fn claim(&self, name: &str, group: &Record, rivals: &[Record]) -> MemberStatus {
        let member = |state: &str, message: String| MemberStatus {
            kind: MemberKind::PersistentVolumeClaim.to_string(),
            name: name.to_owned(),
            volume_handle: None,
            state: state.to_owned(),
            message,
        };
        let mut candidates = group.candidates().iter();
        let Some(candidate) = candidates.find(|candidate| candidate.name == name) else {
            let message = "claim does not exist, or no controller has resolved it".to_owned();
            return member(state::NOT_FOUND, message);
        };
        let (Some(handle), Some(node)) = (&candidate.volume_handle, &candidate.node_name) else {
            return member(state::PENDING, "claim is not bound yet".to_owned());
        };
        if *node != self.agent.node {
            return member(state::OTHER_NODE, format!("is on node {node}"));
        }
        let has = |group: &&Record| {
            let mut candidates = group.candidates().iter();
            candidates.any(|other| other.volume_handle.as_ref() == Some(handle))
        };
        let mut rivals = rivals.iter().filter(has);
        if let Some(first) = rivals.find(|rival| comes_first(rival, group, Some(handle))) {
            let message = format!("{} also selects it and takes precedence", first.key());
            return member(state::CONFLICT, message);
        }
        MemberStatus {
            volume_handle: Some(handle.clone()),
            ..member(state::JOINED, String::new())
        }
    }

    /// The other groups that may select the same volumes.
    fn rivals(&self, group: &Record) -> Vec<Record> {
        let own = group.key();
        let node = &self.agent.node;
        let keys = self.shared.keys_of(|other| {
            matches!(other.body, Body::Group(_))
                && other.metadata.namespace == group.metadata.namespace
                && !other.is_absent()
                && other.drumlin.orphan_since.is_none()
                && other.node().is_none_or(|named| named == node)
                && other.key() != own
        });
        let records = keys.iter().filter_map(|key| self.shared.record(key));
        records.collect()
    }

    fn member(&self, name: &str, group: &Record, rivals: &[Record]) -> MemberStatus {
        let member = |state: &str, message: String, volume_handle: Option<String>| MemberStatus {
            kind: "Volume".to_owned(),
            name: name.to_owned(),
            volume_handle,
            state: state.to_owned(),
            message,
        };
        let elsewhere = |node: &str| member(state::OTHER_NODE, format!("is on node {node}"), None);
        let Some(volume) = self.sibling("Volume", name) else {
            let key = ObjectKey {
                kind: "Volume".to_owned(),
                namespace: self.record.key().namespace,
                name: name.to_owned(),
            };
            return match self.shared.node_elsewhere(&key) {
                Some(node) => elsewhere(&node),
                None => member(
                    state::NOT_FOUND,
                    "no manifest has this name".to_owned(),
                    None,
                ),
            };
        };
        if let Some(node) = volume.node().filter(|node| *node != self.agent.node) {
            return elsewhere(node);
        }
        if volume.is_absent() {
            return member(state::PENDING, "volume is being deleted".to_owned(), None);
        }
        let handle = match &volume.body {
            Body::Volume(Of { status, .. }) => status.volume_handle.as_ref(),
            _ => None,
        };
        let mut rivals = rivals.iter().filter(|rival| rival.wants(&volume));
        if let Some(first) = rivals.find(|rival| comes_first(rival, group, handle)) {
            let message = format!("{} also selects it and takes precedence", first.key());
            return member(state::CONFLICT, message, None);
        }
        match handle {
            Some(handle) => member(state::JOINED, String::new(), Some(handle.clone())),
            None => member(state::PENDING, "volume is not created yet".to_owned(), None),
        }
    }

    /// Returns true if a group has exactly the members that its manifest selects, by the present state of its volumes.
    pub(super) fn has_wanted_members(&self, group: &Record) -> bool {
        let Body::Group(Of { status, .. }) = &group.body else {
            return false;
        };
        let wanted = self.wanted_members(group);
        let joined = status.members.iter();
        let joined = joined.filter(|member| member.state == state::JOINED);
        wanted.iter().collect::<Vec<_>>() == joined.collect::<Vec<_>>()
    }

    /// Returns true if members may have to be added or removed, by the present state of its volumes.
    pub(crate) fn may_change_members(&self, group: &Record) -> bool {
        let Body::Group(Of { status, .. }) = &group.body else {
            return false;
        };
        let leaving = self.volumes_on_their_way_out();
        let mut inside = status.members.iter();
        let is_deleting = inside.any(|member| {
            let handle = member.volume_handle.as_ref();
            handle.is_some_and(|handle| leaving.contains(handle))
        });
        is_deleting || !self.has_wanted_members(group)
    }

    /// After a loss of the state, the applied members are unknown: every selected member in the group counts as
    /// applied, so that a rival that is now older does not get it.
    pub(super) fn recall_members(&mut self, group: &VolumeGroup) {
        if !self.record.drumlin.applied.is_empty() {
            return;
        }
        let is_wanted = |record: &Record| self.record.wants(record);
        let handle = |record: &Record| match &record.body {
            Body::Volume(Of { status, .. }) => status.volume_handle.clone(),
            _ => None,
        };
        let keys = self.shared.keys_of(is_wanted);
        let volumes = keys.iter().filter_map(|key| self.shared.with(key, handle));
        let claims = self.record.candidates().iter();
        let claims = claims.map(|candidate| candidate.volume_handle.clone());
        let wanted: HashSet<String> = volumes.chain(claims).flatten().collect();
        let inside = ids(group).into_iter();
        self.record.drumlin.applied = inside.filter(|id| wanted.contains(id)).collect();
    }

    /// Adds the members that can join. Members that other callers added stay.
    pub(super) async fn follow_members(
        &mut self,
        group: VolumeGroup,
        members: &mut [MemberStatus],
    ) -> Result<VolumeGroup, Halt> {
        let observed = ids(&group);
        let mut staying = observed.clone();
        let leaving = self.volumes_on_their_way_out();
        staying.retain(|id| !leaving.contains(id));
        let handles = members.iter();
        let desired: Vec<String> = handles
            .filter_map(|member| member.volume_handle.clone())
            .collect();
        let before = self.record.drumlin.applied.clone();
        let wanted = merged(&staying, &before, &desired);
        if is_same(&wanted, &observed) {
            self.record.drumlin.applied = desired;
            return Ok(group);
        }
        // Saved before the call: members that it may have added may be removed again.
        self.record.drumlin.applied = union(&before, &desired);
        self.save("group.members.intended")?;
        let group = match self.modify_group(wanted.clone()).await {
            Err(failure) if is_a_members(failure.code) => {
                self.join_in_parts(group, &wanted, members).await?
            }
            changed => changed?,
        };
        self.point("group.members.called");
        let joined = ids(&group);
        if observed.iter().any(|id| !joined.contains(id)) {
            // A removed member can be deleted, or join another group.
            self.shared.wake_waiting();
            self.shared.wake_groups(&self.record.key());
        }
        let ours = desired.into_iter().filter(|id| joined.contains(id));
        self.record.drumlin.applied = ours.collect();
        Ok(group)
    }

    /// The handles of the volumes that are being deleted: they leave their group, whoever added them.
    fn volumes_on_their_way_out(&self) -> HashSet<String> {
        let keys = self.shared.keys_of(Record::is_absent);
        let handle = |record: &Record| match &record.body {
            Body::Volume(Of { status, .. }) => status.volume_handle.clone(),
            _ => None,
        };
        let handles = keys.iter().map(|key| self.shared.with(key, handle));
        handles.flatten().flatten().collect()
    }

    /// Adds members by bisection, so that one that cannot join does not block the others.
    async fn join_in_parts(
        &self,
        mut group: VolumeGroup,
        wanted: &[String],
        members: &mut [MemberStatus],
    ) -> Result<VolumeGroup, Halt> {
        let observed = ids(&group);
        let (mut now, new): (Vec<String>, Vec<String>) =
            wanted.iter().cloned().partition(|id| observed.contains(id));
        if !is_same(&now, &observed) {
            group = self.modify_group(now.clone()).await?;
        }
        let mut parts = halves(&new);
        while let Some(part) = parts.pop() {
            let with = union(&now, &part);
            match self.modify_group(with.clone()).await {
                Ok(changed) => {
                    group = changed;
                    now = with;
                }
                Err(failure) if is_a_members(failure.code) => {
                    if let [id] = part.as_slice() {
                        refuse(members, id, &failure);
                    } else {
                        parts.extend(halves(&part));
                    }
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(group)
    }

    /// Writes the state of the members to the status, including foreign ones.
    pub(super) fn tell_members(&mut self, group: &VolumeGroup, mut members: Vec<MemberStatus>) {
        let inside = ids(group);
        let known: Vec<String> = members
            .iter()
            .filter_map(|member| member.volume_handle.clone())
            .collect();
        let foreign = inside.iter().filter(|id| !known.contains(id));
        let foreign: Vec<MemberStatus> = foreign
            .map(|id| MemberStatus {
                kind: "Volume".to_owned(),
                name: self.name_of(id),
                volume_handle: Some(id.clone()),
                state: state::FOREIGN.to_owned(),
                message: "added by another caller; it stays in the group".to_owned(),
            })
            .collect();
        let desired = u32::try_from(members.len()).unwrap_or(u32::MAX);
        members.extend(foreign);
        self.tell_volumes(&inside);
        let status = self.group_status_mut();
        status.desired_count = desired;
        status.member_count = u32::try_from(inside.len()).unwrap_or(u32::MAX);
        status.members = members;
    }

    /// Writes the name of the group to the status of its volumes.
    pub(super) fn tell_volumes(&self, inside: &[String]) {
        let own = self.record.key();
        let group = |record: &Record| {
            let Body::Volume(Of { status, .. }) = &record.body else {
                return None;
            };
            let handle = status.volume_handle.as_ref();
            let is_inside = handle.is_some_and(|id| inside.contains(id));
            let says_so = status.group_name.as_deref() == Some(own.name.as_str());
            (is_inside != says_so).then(|| is_inside.then(|| own.name.clone()))
        };
        let is_wrong =
            |record: &Record| record.key().namespace == own.namespace && group(record).is_some();
        for key in self.shared.keys_of(is_wrong) {
            let told = self.shared.edit(&key, |record| {
                let name = group(record);
                match (&mut record.body, name) {
                    (Body::Volume(Of { status, .. }), Some(name)) => {
                        status.group_name = name;
                        true
                    }
                    _ => false,
                }
            });
            if let Err(error) = told {
                tracing::warn!(object = %key, error = %error, "group name of the volume could not be written");
            }
        }
    }

    /// The name of a volume in the manifests of this namespace.
    fn name_of(&self, id: &str) -> String {
        let namespace = self.record.key().namespace;
        let keys = self.shared.keys_of(|record| {
            let is_it = matches!(&record.body, Body::Volume(Of { status, .. })
                if status.volume_handle.as_deref() == Some(id));
            is_it && record.key().namespace == namespace
        });
        keys.into_iter()
            .next()
            .map(|key| key.name)
            .unwrap_or_default()
    }

    /// Ready if all selected members have joined: a snapshot would lack the others.
    pub(super) fn judge_members(&self) -> Result<Verdict, Halt> {
        let (spec, status) = self.group_parts();
        let of = |state: &str| status.members.iter().find(|member| member.state == state);
        let count = |state: &str| {
            let members = status.members.iter();
            members.filter(|member| member.state == state).count()
        };
        let tell =
            |member: &MemberStatus| format!("{} {}: {}", member.kind, member.name, member.message);
        if let Some(member) = of(state::CONFLICT) {
            return Err(stalled("MemberConflict", tell(member)));
        }
        if let Some(member) = of(state::OTHER_NODE) {
            return Err(stalled("MembersOnOtherNode", tell(member)));
        }
        if let Some(member) = of(state::PENDING).or(of(state::NOT_FOUND)) {
            return Err(waiting("MembersPending", tell(member)));
        }
        if status.member_count < spec.min_members {
            return Err(waiting(
                "MembersPending",
                format!(
                    "{} members joined, but spec.minMembers is {}",
                    status.member_count, spec.min_members
                ),
            ));
        }
        let joined = format!(
            "{} of {} members joined",
            count(state::JOINED),
            status.desired_count
        );
        let message = match count(state::FOREIGN) {
            0 => joined,
            foreign => format!("{joined}, and {foreign} added by other callers"),
        };
        Ok(ready("AllMembersJoined", message))
    }
}

/// Returns true if a group takes precedence for a volume that both select: the one that has it, then the older one,
/// then by name.
fn comes_first(rival: &Record, own: &Record, handle: Option<&String>) -> bool {
    let place = |group: &Record| {
        let has = handle.is_some_and(|handle| group.drumlin.applied.contains(handle));
        let made = group.metadata.creation_timestamp.clone();
        (!has, made.map(|made| made.0), group.key())
    };
    place(rival) < place(own)
}

/// Removes duplicates: a Volume and a claim may stand for the same volume.
fn once(mut members: Vec<MemberStatus>) -> Vec<MemberStatus> {
    let volumes: HashSet<String> = members
        .iter()
        .filter(|member| member.kind == "Volume")
        .filter_map(|member| member.volume_handle.clone())
        .collect();
    let mut seen = HashSet::new();
    members.retain(|member| match &member.volume_handle {
        None => true,
        Some(handle) if member.kind != "Volume" && volumes.contains(handle) => false,
        Some(handle) => seen.insert(handle.clone()),
    });
    members
}

/// Returns true if a failure concerns a member, and not the group.
fn is_a_members(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition
    )
}

/// Notes that a member cannot join, and why.
fn refuse(members: &mut [MemberStatus], id: &str, failure: &Failure) {
    let is_it = |member: &&mut MemberStatus| member.volume_handle.as_deref() == Some(id);
    if let Some(member) = members.iter_mut().find(is_it) {
        let state = match failure.code {
            Code::InvalidArgument => state::CONFLICT,
            Code::NotFound => state::NOT_FOUND,
            _ => state::PENDING,
        };
        state.clone_into(&mut member.state);
        member.message.clone_from(&failure.message);
    }
}

/// Splits a list into halves, the second one first; a list of one stays whole, an empty one has no parts.
fn halves(ids: &[String]) -> Vec<Vec<String>> {
    let (first, second) = ids.split_at(ids.len() / 2);
    let parts = [second, first].into_iter();
    let parts = parts.filter(|part| !part.is_empty());
    parts.map(<[String]>::to_vec).collect()
}

fn ids(group: &VolumeGroup) -> Vec<String> {
    let volumes = group.volumes.iter();
    volumes.map(|volume| volume.volume_id.clone()).collect()
}

/// Returns true if two lists have the same volumes, in any order.
fn is_same(one: &[String], other: &[String]) -> bool {
    one.len() == other.len() && one.iter().all(|id| other.contains(id))
}

/// The union of two lists.
fn union(one: &[String], other: &[String]) -> Vec<String> {
    let more = other.iter().filter(|id| !one.contains(id));
    one.iter().chain(more).cloned().collect()
}

/// The desired members: those selected by the manifest, and those that other callers added.
fn merged(observed: &[String], applied: &[String], desired: &[String]) -> Vec<String> {
    let others: Vec<String> = observed
        .iter()
        .filter(|id| !applied.contains(id))
        .cloned()
        .collect();
    union(&others, desired)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn what_others_have_added_stays_and_what_we_applied_goes_when_it_is_not_wanted() {
        for (observed, applied, desired, wanted) in [
            ("", "", "a b", "a b"),
            ("a b", "a b", "a b", "a b"),
            ("a b x", "a b", "a b", "x a b"),
            ("a b x", "a b", "a", "x a"),
            ("a x", "a", "", "x"),
            // Removed by another caller, but selected.
            ("", "a", "a", "a"),
            // A kill between the intent and the call, and one after it.
            ("a", "a b", "a b", "a b"),
            ("a b", "a b", "a", "a"),
        ] {
            let merged = merged(&list(observed), &list(applied), &list(desired));
            assert_eq!(merged, list(wanted), "{observed} / {applied} / {desired}");
        }
    }

    #[test]
    fn a_volume_and_the_claim_that_names_it_are_one_member() {
        let member = |kind: &str, name: &str, handle: Option<&str>| MemberStatus {
            kind: kind.to_owned(),
            name: name.to_owned(),
            volume_handle: handle.map(str::to_owned),
            state: state::JOINED.to_owned(),
            message: String::new(),
        };
        let claim = "PersistentVolumeClaim";
        let members = once(vec![
            member(claim, "data", Some("n/c/1")),
            member(claim, "wal", Some("n/c/2")),
            member(claim, "new", None),
            member("Volume", "data", Some("n/c/1")),
            member("Volume", "later", None),
        ]);
        let left: Vec<String> = members
            .iter()
            .map(|member| format!("{} {}", member.kind, member.name))
            .collect();
        assert_eq!(
            left,
            [
                "PersistentVolumeClaim wal",
                "PersistentVolumeClaim new",
                "Volume data",
                "Volume later"
            ]
        );
    }

    #[test]
    fn a_list_is_halved_until_every_part_is_one_volume() {
        assert_eq!(halves(&[]), Vec::<Vec<String>>::new());
        assert_eq!(halves(&list("a")), [list("a")]);
        assert_eq!(halves(&list("a b c")), [list("b c"), list("a")]);
        let mut parts = vec![list("a b c d e f g")];
        let mut ones = Vec::new();
        while let Some(part) = parts.pop() {
            match part.as_slice() {
                [one] => ones.push(one.clone()),
                _ => parts.extend(halves(&part)),
            }
        }
        assert_eq!(ones, list("a b c d e f g"));
    }
}
