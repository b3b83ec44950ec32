//! What a volume is to its record.

use drumlin_crd::{VolumeSpec, VolumeStatus};
use drumlin_proto::drumlin::v1::InventoryObject;
use serde_json::Value;

use super::{
    Book,
    body::{Body, ObjectBody, Of, of_every_kind},
};
use crate::inventory::{Inventory, size};

impl ObjectBody for Of<VolumeSpec, VolumeStatus> {
    of_every_kind!(Volume, Volume);

    /// A group writes its name into its members.
    fn take_shared_status(&mut self, now: &Body) {
        if let Body::Volume(now) = now {
            self.status.group_name.clone_from(&now.status.group_name);
        }
    }

    fn references(&self) -> Vec<(&'static str, &str)> {
        let Some(source) = &self.spec.source else {
            return Vec::new();
        };
        let snapshot = source.snapshot_name.iter();
        let volume = source.volume_name.iter();
        let group = source.group_snapshot.iter().map(|member| &member.name);
        let all = snapshot.map(|name| ("Snapshot", name.as_str()));
        let all = all.chain(volume.map(|name| ("Volume", name.as_str())));
        all.chain(group.map(|name| ("GroupSnapshot", name.as_str())))
            .collect()
    }

    fn handle(&self) -> Option<&str> {
        self.status.volume_handle.as_deref()
    }

    fn is_begun(&self, book: &Book) -> bool {
        book.create.is_some() || self.status.volume_handle.is_some()
    }

    fn recall(&mut self, status: &Value, book: &mut Book) {
        self.read_status(status);
        if self.status.mount_path.is_some() {
            book.mounted.clone_from(&self.spec.mount);
        }
    }

    fn take_resource(&mut self, resource: &InventoryObject, _inventory: &Inventory) {
        self.status.volume_handle = Some(resource.object_id.clone());
        self.status.csi_name = Some(resource.name.clone());
        self.status.capacity = Some(size(resource.size_bytes));
    }
}
