//! What a group is to its record.

use drumlin_crd::{
    DeletionPolicy, MemberKind, Object, Observed, VolumeGroup, VolumeGroupSpec, VolumeGroupStatus,
};
use drumlin_proto::drumlin::v1::InventoryObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{
    Book,
    body::{Body, ObjectBody, Of},
};
use crate::inventory::Inventory;

impl ObjectBody for Of<VolumeGroupSpec, VolumeGroupStatus> {
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
        let mut object = VolumeGroup::new("", (*self.spec).clone());
        object.metadata = metadata;
        Object::Group(Box::new(object))
    }

    fn is_spec_of(&self, object: &Object) -> bool {
        matches!(object, Object::Group(object) if object.spec == *self.spec)
    }

    fn take_spec(&mut self, other: Body) {
        if let Body::Group(other) = other {
            self.spec = other.spec;
        }
    }

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
