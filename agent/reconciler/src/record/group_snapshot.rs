//! What a group snapshot is to its record.

use drumlin_crd::{GroupSnapshotSpec, GroupSnapshotStatus, MemberKind, MemberSnapshot, names};
use drumlin_proto::drumlin::v1::InventoryObject;
use serde_json::Value;

use super::{
    Book,
    body::{ObjectBody, Of, of_every_kind},
};
use crate::inventory::{Inventory, label, owner, rfc3339, size};

impl ObjectBody for Of<GroupSnapshotSpec, GroupSnapshotStatus> {
    of_every_kind!(GroupSnapshot, GroupSnapshot);

    fn references(&self) -> Vec<(&'static str, &str)> {
        vec![("VolumeGroup", &self.spec.group_name)]
    }

    fn handle(&self) -> Option<&str> {
        self.status.group_snapshot_handle.as_deref()
    }

    fn is_begun(&self, _book: &Book) -> bool {
        !self.status.members.is_empty()
    }

    fn recall(&mut self, status: &Value, _book: &mut Book) {
        self.read_status(status);
    }

    fn take_resource(&mut self, resource: &InventoryObject, inventory: &Inventory) {
        let status = &mut self.status;
        status.members = members(resource, inventory);
        status.member_count = u32::try_from(status.members.len()).unwrap_or(u32::MAX);
        status.group_snapshot_handle = Some(resource.object_id.clone());
        status.csi_name = Some(resource.name.clone());
        status.creation_time = resource.creation_time.as_ref().and_then(rfc3339);
        // Whether it is complete is checked next.
        status.ready_to_use = true;
    }
}

/// The members of a group snapshot, each named after the owner of its volume.
fn members(object: &InventoryObject, inventory: &Inventory) -> Vec<MemberSnapshot> {
    let member = |volume: &String| {
        let of_it = |found: &&InventoryObject| {
            found.group_snapshot_id == object.object_id && found.volume_ids.contains(volume)
        };
        let snapshot = inventory.iter().find(of_it);
        let (kind, name) = inventory.get(volume).map_or_else(
            || (MemberKind::Volume, String::new()),
            |volume| match owner(volume) {
                Some(owner) => (MemberKind::Volume, owner.name),
                None => claim_of(volume),
            },
        );
        MemberSnapshot {
            kind: kind.to_string(),
            name,
            volume_handle: volume.clone(),
            snapshot_handle: snapshot.map(|found| found.object_id.clone()),
            restore_size: snapshot.map(|found| size(found.size_bytes)),
            ready_to_use: snapshot.is_some_and(|found| found.problem.is_empty()),
        }
    };
    let mut members: Vec<MemberSnapshot> = object.volume_ids.iter().map(member).collect();
    members.sort_by(|one, other| (&one.kind, &one.name).cmp(&(&other.kind, &other.name)));
    members
}

/// The claim that a provisioner created a volume for.
fn claim_of(volume: &InventoryObject) -> (MemberKind, String) {
    match label(volume, names::CLAIM) {
        Some(claim) => (MemberKind::PersistentVolumeClaim, claim.to_owned()),
        None => (MemberKind::Volume, String::new()),
    }
}
