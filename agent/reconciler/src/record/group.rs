//! What a group is to its record.

use drumlin_crd::{MemberKind, VolumeGroupSpec, VolumeGroupStatus};
use drumlin_proto::drumlin::v1::InventoryObject;
use serde_json::Value;

use super::{
    Book,
    body::{Body, ObjectBody, Of, of_every_kind},
};
use crate::inventory::Inventory;

impl ObjectBody for Of<VolumeGroupSpec, VolumeGroupStatus> {
    of_every_kind!(Group, VolumeGroup);

    /// A group snapshot writes its time into its group.
    fn take_shared_status(&mut self, now: &Body) {
        if let Body::Group(now) = now {
            let time = &now.status.last_snapshot_time;
            self.status.last_snapshot_time.clone_from(time);
        }
    }

    fn references(&self) -> Vec<(&'static str, &str)> {
        let members = self.spec.members.iter().flatten();
        let volumes = members.filter(|member| member.kind == MemberKind::Volume);
        volumes
            .map(|member| ("Volume", member.name.as_str()))
            .collect()
    }

    fn handle(&self) -> Option<&str> {
        self.status.group_handle.as_deref()
    }

    fn is_begun(&self, _book: &Book) -> bool {
        self.status.csi_name.is_some()
    }

    fn recall(&mut self, status: &Value, _book: &mut Book) {
        self.read_status(status);
        self.status.candidates = Vec::new();
    }

    fn take_resource(&mut self, resource: &InventoryObject, _inventory: &Inventory) {
        self.status.group_handle = Some(resource.object_id.clone());
        self.status.csi_name = Some(resource.name.clone());
    }
}
