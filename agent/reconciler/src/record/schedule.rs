//! What a schedule is to its record, and what its snapshots are.

use drumlin_crd::{
    Object, ObjectKey, Observed, Retention, SnapshotSchedule, SnapshotScheduleSpec,
    SnapshotScheduleStatus, VolumeDeletionPolicy, names,
};
use drumlin_proto::drumlin::v1::InventoryObject;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Body, Book, Record,
    body::{ObjectBody, Of},
};
use crate::{inventory::Inventory, schedule::slot_of};

/// What a schedule has begun.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Runs {
    /// The run whose snapshot is not ready yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<Run>,
    /// Why the last slot has no snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    /// True if so many slots passed before the last run, or since then, that the clock is suspect: nothing is pruned until the next
    /// run is successful.
    #[serde(default)]
    pub(crate) is_ahead: bool,
    /// The retention that applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retention: Option<AppliedRetention>,
}

/// A retention, and when it deletes snapshots.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AppliedRetention {
    /// Which snapshots are kept.
    pub(crate) rules: Retention,
    /// The time zone of its days.
    pub(crate) zone: String,
    /// It deletes nothing before.
    pub(crate) from: Timestamp,
}

/// A run of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Run {
    /// Its slot.
    pub(crate) slot: Timestamp,
    /// True if its snapshot object was made.
    pub(crate) is_made: bool,
}

impl ObjectBody for Of<SnapshotScheduleSpec, SnapshotScheduleStatus> {
    fn status(&self) -> &dyn Observed {
        &*self.status
    }

    fn status_mut(&mut self) -> &mut dyn Observed {
        &mut *self.status
    }

    fn node(&self) -> Option<&str> {
        self.spec.node_name.as_deref()
    }

    /// A schedule that ends leaves its snapshots.
    fn deletion_policy(&self) -> VolumeDeletionPolicy {
        VolumeDeletionPolicy::Retain
    }

    fn object(&self, metadata: ObjectMeta) -> Object {
        let mut object = SnapshotSchedule::new("", (*self.spec).clone());
        object.metadata = metadata;
        Object::Schedule(Box::new(object))
    }

    fn is_spec_of(&self, object: &Object) -> bool {
        matches!(object, Object::Schedule(object) if object.spec == *self.spec)
    }

    fn take_spec(&mut self, other: Body) {
        if let Body::Schedule(other) = other {
            self.spec = other.spec;
        }
    }

    fn references(&self) -> Vec<(&'static str, &str)> {
        let target = &self.spec.target;
        let volume = target.volume_name.iter().map(|name| ("Volume", &**name));
        let group = target.group_name.iter();
        volume
            .chain(group.map(|name| ("VolumeGroup", &**name)))
            .collect()
    }

    fn handle(&self) -> Option<&str> {
        None
    }

    /// Its record says which slots were served. On an API server the status says so.
    fn is_begun(&self, book: &Book) -> bool {
        book.served.is_none() && self.status.last_schedule_time.is_some()
    }

    fn recall(&mut self, status: &Value, _book: &mut Book) {
        self.read_status(status);
        self.status.candidates = Vec::new();
    }

    fn take_resource(&mut self, _resource: &InventoryObject, _inventory: &Inventory) {}
}

impl Record {
    /// Returns true if it acts at times of its own.
    pub(crate) fn is_timed(&self) -> bool {
        matches!(self.body, Body::Schedule(_))
            && self.drumlin.orphan_since.is_none()
            && !self.is_paused()
            && !self.is_absent()
    }

    /// The schedule that took this snapshot, by its label.
    pub(crate) fn schedule(&self) -> Option<ObjectKey> {
        if !matches!(self.body, Body::Snapshot(_) | Body::GroupSnapshot(_)) {
            return None;
        }
        let name = self.metadata.labels.as_ref()?.get(names::SCHEDULE)?;
        Some(ObjectKey {
            kind: "SnapshotSchedule".to_owned(),
            namespace: self.key().namespace,
            name: name.clone(),
        })
    }

    /// The slot of this snapshot, if the schedule `of` took it and may delete it: not if it was renamed, has no label of
    /// the schedule any more, or has a manifest of its own.
    pub(crate) fn slot_for(&self, of: &Self) -> Option<Timestamp> {
        let schedule = of.key();
        if self.schedule().as_ref() != Some(&schedule) || !of.may_use(self) {
            return None;
        }
        let is_its_own = match (of.served(), self.served()) {
            (Some(_), Some(_)) => true,
            (None, None) => self.drumlin.schedule.as_ref() == Some(&schedule.name),
            _ => false,
        };
        let slot = slot_of(&schedule.name, self.metadata.name.as_deref()?);
        slot.filter(|_| is_its_own)
    }

    /// Returns true if it is what is left of a snapshot that its schedule, or a person, has deleted.
    pub(crate) fn is_spent(&self) -> bool {
        self.drumlin.schedule.is_some() && self.is_absent() && self.is_destroyed()
    }
}
