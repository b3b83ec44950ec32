//! What a snapshot is to its record.

use drumlin_crd::{SnapshotSpec, SnapshotStatus};
use drumlin_proto::drumlin::v1::InventoryObject;
use serde_json::Value;

use super::{
    Book,
    body::{ObjectBody, Of, of_every_kind},
};
use crate::inventory::{Inventory, rfc3339, size};

impl ObjectBody for Of<SnapshotSpec, SnapshotStatus> {
    of_every_kind!(Snapshot, Snapshot);

    fn references(&self) -> Vec<(&'static str, &str)> {
        let volume = self.spec.source.volume_name.iter();
        volume.map(|name| ("Volume", name.as_str())).collect()
    }

    fn handle(&self) -> Option<&str> {
        self.status.snapshot_handle.as_deref()
    }

    fn is_begun(&self, _book: &Book) -> bool {
        self.status.source_volume_handle.is_some()
    }

    fn recall(&mut self, status: &Value, _book: &mut Book) {
        self.read_status(status);
        self.status.candidates = Vec::new();
    }

    fn take_resource(&mut self, resource: &InventoryObject, _inventory: &Inventory) {
        let status = &mut self.status;
        status.snapshot_handle = Some(resource.object_id.clone());
        status.csi_name = Some(resource.name.clone());
        status.restore_size = Some(size(resource.size_bytes));
        status.creation_time = resource.creation_time.as_ref().and_then(rfc3339);
        status.ready_to_use = resource.problem.is_empty();
        let source = resource.volume_ids.first();
        status.source_volume_handle = Some(source.cloned().unwrap_or_default());
    }
}
