//! Which objects are looked at again when another one, or this host, has changed.

use drumlin_crd::ObjectKey;
use tokio::time::Instant;

use super::{Shared, lock};
use crate::record::{Body, Of, Record};

impl Shared {
    /// Queues a schedule: one of its snapshots has changed.
    pub(super) fn wake_schedule(&self, schedule: Option<ObjectKey>) {
        let schedule = schedule.filter(|schedule| self.with(schedule, |_| ()).is_some());
        if let Some(schedule) = schedule {
            self.queue.add(&schedule, Instant::now());
        }
    }

    /// Capacity, a dependency or a path was freed: wakes the objects that wait for that.
    pub(crate) fn wake_waiting(&self) {
        let is_waiting = |record: &Record| {
            let reason = record.condition("Ready").map(|ready| ready.reason.as_str());
            matches!(
                reason,
                Some("InsufficientCapacity" | "DeletionBlocked" | "MountConflict" | "MountPending")
            )
        };
        for key in self.keys_of(is_waiting) {
            self.queue.add(&key, Instant::now());
        }
    }

    /// A volume or a group was changed, added or removed: queues the groups whose members may change by that.
    pub(crate) fn wake_groups(&self, key: &ObjectKey) {
        self.look_again(&self.groups_about(key));
    }

    pub(super) fn look_again(&self, keys: &[ObjectKey]) {
        for key in keys {
            self.doubt(key);
            self.queue.add(key, Instant::now());
        }
    }

    /// The groups that a volume may be in or join, or that compete with a group for members.
    pub(super) fn groups_about(&self, key: &ObjectKey) -> Vec<ObjectKey> {
        if key.kind == "VolumeGroup" {
            let group = self.record(key);
            let may_rival = |other: &Record| group.as_ref().is_some_and(|own| own.may_rival(other));
            return self.keys_of(may_rival);
        }
        if key.kind != "Volume" {
            return Vec::new();
        }
        let handle = self.with(key, |record| match &record.body {
            Body::Volume(Of { status, .. }) => status.volume_handle.clone(),
            _ => None,
        });
        let handle = handle.flatten();
        self.keys_of(|record| {
            let Body::Group(Of { spec, status }) = &record.body else {
                return false;
            };
            let mut members = spec.members.iter().flatten();
            let may_mean = spec.selector.is_some() || members.any(|member| member.name == key.name);
            let is_near = record.metadata.namespace.as_ref() == Some(&key.namespace);
            let mut inside = status.members.iter();
            (is_near && may_mean)
                || handle.is_some() && inside.any(|member| member.volume_handle == handle)
        })
    }

    /// Queues the objects that wait for this one.
    pub(super) fn wake_dependants(&self, key: &ObjectKey) {
        let records = lock(&self.records);
        let waiting: Vec<ObjectKey> = records
            .dependants
            .get(key)
            .into_iter()
            .flatten()
            .filter(|key| {
                records
                    .by_key
                    .get(key)
                    .is_some_and(|record| !record.is_settled())
            })
            .cloned()
            .collect();
        drop(records);
        for key in waiting {
            self.queue.add(&key, Instant::now());
        }
    }
}
