//! Spec and status of an object, by kind.

use std::fmt::Debug;

use drumlin_crd::{
    GroupSnapshotSpec, GroupSnapshotStatus, Object, Observed, SnapshotScheduleSpec,
    SnapshotScheduleStatus, SnapshotSpec, SnapshotStatus, VolumeDeletionPolicy, VolumeGroupSpec,
    VolumeGroupStatus, VolumeSpec, VolumeStatus,
};
use drumlin_proto::drumlin::v1::InventoryObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::Book;
use crate::inventory::Inventory;

/// Spec and status of one object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Body {
    /// Of a volume.
    Volume(Of<VolumeSpec, VolumeStatus>),
    /// Of a snapshot.
    Snapshot(Of<SnapshotSpec, SnapshotStatus>),
    /// Of a group snapshot.
    GroupSnapshot(Of<GroupSnapshotSpec, GroupSnapshotStatus>),
    /// Of a group.
    Group(Of<VolumeGroupSpec, VolumeGroupStatus>),
    /// Of a schedule.
    Schedule(Of<SnapshotScheduleSpec, SnapshotScheduleStatus>),
}

/// Spec and status of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Of<S, T: Default> {
    pub(crate) spec: Box<S>,
    #[serde(default)]
    pub(crate) status: Box<T>,
}

/// What differs between the kinds; a file beside this one for each.
pub(crate) trait ObjectBody: Debug {
    /// The status, as far as it is the same for all kinds.
    fn status(&self) -> &dyn Observed;

    /// The same, mutable.
    fn status_mut(&mut self) -> &mut dyn Observed;

    /// The node that the manifest names.
    fn node(&self) -> Option<&str>;

    /// The deletion policy of the manifest.
    fn deletion_policy(&self) -> VolumeDeletionPolicy;

    /// The object with this spec.
    fn object(&self, metadata: ObjectMeta) -> Object;

    /// Returns true if the object has this spec.
    fn is_spec_of(&self, object: &Object) -> bool;

    /// Takes over the spec of another body of the same kind.
    fn take_spec(&mut self, other: Body);

    /// Takes over the parts of the status that other objects write.
    fn take_shared_status(&mut self, _now: &Body) {}

    /// Kind and name of the objects that it refers to: its source, its group, or its members.
    fn references(&self) -> Vec<(&'static str, &str)>;

    /// The handle of its resource.
    fn handle(&self) -> Option<&str>;

    /// Returns true if the agent may have resources of it.
    fn is_begun(&self, book: &Book) -> bool;

    /// Restores the status from what the API server has.
    fn recall(&mut self, status: &Value, book: &mut Book);

    /// Takes an existing resource for the one of the object.
    fn take_resource(&mut self, resource: &InventoryObject, inventory: &Inventory);
}

/// The methods of [`ObjectBody`] that differ between the kinds in names alone: the variant of [`Object`] and [`Body`], and
/// the type of the object.
macro_rules! of_every_kind {
    ($variant:ident, $object:ident) => {
        fn status(&self) -> &dyn drumlin_crd::Observed {
            &*self.status
        }

        fn status_mut(&mut self) -> &mut dyn drumlin_crd::Observed {
            &mut *self.status
        }

        fn node(&self) -> Option<&str> {
            self.spec.node_name.as_deref()
        }

        fn deletion_policy(&self) -> drumlin_crd::VolumeDeletionPolicy {
            self.spec.deletion_policy.into()
        }

        fn object(
            &self,
            metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
        ) -> drumlin_crd::Object {
            let mut object = drumlin_crd::$object::new("", (*self.spec).clone());
            object.metadata = metadata;
            drumlin_crd::Object::$variant(Box::new(object))
        }

        fn is_spec_of(&self, object: &drumlin_crd::Object) -> bool {
            matches!(object, drumlin_crd::Object::$variant(object) if object.spec == *self.spec)
        }

        fn take_spec(&mut self, other: $crate::record::Body) {
            if let $crate::record::Body::$variant(other) = other {
                self.spec = other.spec;
            }
        }
    };
}
pub(super) use of_every_kind;

impl<S, T: Default> Of<S, T> {
    /// Of a new object, with an empty status.
    fn new(spec: S) -> Self {
        Self {
            spec: Box::new(spec),
            status: Box::default(),
        }
    }

    /// Reads a status; one that cannot be read is empty.
    pub(super) fn read_status(&mut self, status: &Value)
    where
        T: DeserializeOwned,
    {
        *self.status = T::deserialize(status).unwrap_or_default();
    }
}

impl Body {
    /// The body of a new object, with an empty status.
    pub(crate) fn of(object: &Object) -> Self {
        match object {
            Object::Volume(object) => Self::Volume(Of::new(object.spec.clone())),
            Object::Snapshot(object) => Self::Snapshot(Of::new(object.spec.clone())),
            Object::Group(object) => Self::Group(Of::new(object.spec.clone())),
            Object::GroupSnapshot(object) => Self::GroupSnapshot(Of::new(object.spec.clone())),
            Object::Schedule(object) => Self::Schedule(Of::new(object.spec.clone())),
        }
    }

    /// What differs between the kinds.
    pub(crate) fn kind(&self) -> &dyn ObjectBody {
        match self {
            Self::Volume(body) => body,
            Self::Snapshot(body) => body,
            Self::Group(body) => body,
            Self::GroupSnapshot(body) => body,
            Self::Schedule(body) => body,
        }
    }

    /// The same, mutable.
    pub(crate) fn kind_mut(&mut self) -> &mut dyn ObjectBody {
        match self {
            Self::Volume(body) => body,
            Self::Snapshot(body) => body,
            Self::Group(body) => body,
            Self::GroupSnapshot(body) => body,
            Self::Schedule(body) => body,
        }
    }
}
