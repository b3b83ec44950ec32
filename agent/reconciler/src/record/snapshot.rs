//! What a snapshot is to its record.

use drumlin_crd::{DeletionPolicy, Object, Observed, Snapshot, SnapshotSpec, SnapshotStatus};
use drumlin_proto::drumlin::v1::InventoryObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{
    Book,
    body::{Body, ObjectBody, Of},
};
use crate::inventory::{Inventory, rfc3339, size};

impl ObjectBody for Of<SnapshotSpec, SnapshotStatus> {
    fn status(&self) -> &dyn Observed {
        &*self.status
    }

    fn status_mut(&mut self) -> &mut dyn Observed {
        &mut *self.status
    }

    fn node(&self) -> Option<&str> {
        self.spec.node_name.as_deref()
    }

    fn deletion_policy(&self) -> DeletionPolicy {
        self.spec.deletion_policy
    }

    fn object(&self, metadata: ObjectMeta) -> Object {
        let mut object = Snapshot::new("", (*self.spec).clone());
        object.metadata = metadata;
        Object::Snapshot(Box::new(object))
    }

    fn is_spec_of(&self, object: &Object) -> bool {
        matches!(object, Object::Snapshot(object) if object.spec == *self.spec)
    }

    fn take_spec(&mut self, other: Body) {
        if let Body::Snapshot(other) = other {
            self.spec = other.spec;
        }
    }

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
