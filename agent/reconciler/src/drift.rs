//! Drift check: all classes are available and all resources still exist; one list for all objects, every ten minutes.
//!
//! Nothing is changed here: a suspected object is queued for its own pass, which serializes all work on it.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use drumlin_crd::{ObjectKey, VolumeGroupStatus, names};
use drumlin_proto::{csi::v1, drumlin::v1::ObjectKind, volumegroup::ListVolumeGroupsRequest};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    client::{Cause, Failure, LIST, call},
    engine::Engine,
    inventory::{Inventory, size},
    kinds::{
        group_members::is_inside,
        volume::{abnormal, stats_at},
    },
    record::{Body, Of, Record},
};

/// Interval of the drift check.
const VERIFY: Duration = Duration::from_mins(10);
/// Interval at which an unavailable class is probed: initial and maximum.
const TROUBLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

impl Engine {
    /// Runs the drift check forever: every ten minutes, and more often with backoff while a class is unavailable.
    pub(crate) async fn keep_verifying(&self) {
        let mut verified: Option<Instant> = None;
        let mut pause = None;
        let every = self.shared.time_lapse(VERIFY);
        loop {
            self.open().await;
            let probed = self.client.probe().await;
            let is_back = probed.is_ok() && pause.take().is_some();
            if is_back {
                self.client.forget_inventory().await;
                self.wake_unfinished();
            }
            if is_back || verified.is_none_or(|verified| verified.elapsed() >= every) {
                verified = Some(Instant::now());
                self.verify().await;
                // Nobody asks for it soon where nothing is to be done, and it is as large as all that it lists.
                if self.shared.queue.is_idle() {
                    self.client.forget_inventory().await;
                }
            }
            let wait = match probed {
                Ok(()) => VERIFY,
                Err(_) => pause.map_or(TROUBLE.0, |pause: Duration| (pause * 2).min(TROUBLE.1)),
            };
            if probed.is_err() {
                pause = Some(wait);
            }
            tokio::time::sleep(self.shared.time_lapse(wait)).await;
        }
    }

    /// Retries all unfinished objects immediately.
    fn wake_unfinished(&self) {
        for key in self.shared.keys_of(|record| self.shared.needs_work(record)) {
            self.reset(&key);
        }
    }

    /// Looks for volumes, snapshots and groups that disappeared or came back, and for missing mounts. A list that fails
    /// is retried at the next check.
    async fn verify(&self) {
        for record in self.verify_resources().await {
            if let Body::Volume(Of { status, .. }) = &record.body
                && let (Some(handle), Some(path)) = (&status.volume_handle, &status.mount_path)
                && !self.verify_mount(&record.key(), handle, path).await
            {
                return;
            }
        }
    }

    /// Looks for resources that disappeared or came back; returns the records that are as they should be.
    pub(crate) async fn verify_resources(&self) -> Vec<Record> {
        let keys = self.shared.keys_of(|record| {
            record.is_begun()
                && record.drumlin.orphan_since.is_none()
                && !record.drumlin.destroyed
                && !record.is_paused()
        });
        if keys.is_empty() {
            return Vec::new();
        }
        // Collected before the lists: a resource that is created later is in no list and must not count as missing.
        let mut records: Vec<Record> = keys
            .iter()
            .filter_map(|key| self.shared.record(key))
            .collect();
        let found = self.everything(&records).await;
        records.retain(|record| {
            if let Some(why) = found.hidden(record) {
                self.tell_hidden(record, why);
                return false;
            }
            let differs = found.differs_from(record);
            if differs {
                self.doubt(&record.key());
            }
            !differs
        });
        records
    }

    /// Says of a volume that nothing is known of it, because its class cannot be read.
    fn tell_hidden(&self, record: &Record, why: String) {
        if matches!(record.body, Body::Volume(_)) && !is_told(record, Some(&why)) {
            let told = self.shared.edit(&record.key(), |record| {
                record.drift(Some(why));
                true
            });
            if let Err(error) = told {
                tracing::warn!(object = %record.key(), %error, "condition not written");
            }
        }
    }

    /// Reads the observed resources: from our own agent by one inventory call, in which no class hides another; from
    /// any other CSI driver by the CSI lists.
    async fn everything(&self, records: &[Record]) -> ObservedState {
        self.client.forget_inventory().await;
        match self.client.inventory().await {
            Ok(inventory) if inventory.is_known() => return ObservedState::of(&inventory),
            Err(failure) => {
                known::<()>(Err(failure));
                return ObservedState::default();
            }
            Ok(_) => {}
        }
        let is_group = |record: &Record| matches!(record.body, Body::Group(_));
        ObservedState {
            volumes: known(self.volumes().await),
            snapshots: known(self.snapshots().await),
            groups: if records.iter().any(is_group) {
                known(self.groups().await)
            } else {
                None
            },
            unreadable: HashMap::new(),
        }
    }

    /// Marks an object as suspected and queues it, so that its pass looks for its resources.
    fn doubt(&self, key: &ObjectKey) {
        self.shared.doubt(key);
        self.reset(key);
    }

    async fn volumes(&self) -> Result<HashMap<String, ObservedVolume>, Failure> {
        let mut volumes = HashMap::new();
        let mut request = v1::ListVolumesRequest::default();
        loop {
            let answer = call(
                "ListVolumes",
                LIST,
                self.client.controller().list_volumes(request.clone()),
            )
            .await?;
            volumes.extend(answer.entries.into_iter().filter_map(|entry| {
                let volume = entry.volume?;
                let condition = entry.status.and_then(|status| status.volume_condition);
                let looks = ObservedVolume {
                    bytes: volume.capacity_bytes,
                    problem: condition.and_then(abnormal),
                };
                Some((volume.volume_id, looks))
            }));
            if answer.next_token.is_empty() {
                return Ok(volumes);
            }
            request.starting_token = answer.next_token;
        }
    }

    async fn snapshots(&self) -> Result<HashSet<String>, Failure> {
        let mut snapshots = HashSet::new();
        let mut request = v1::ListSnapshotsRequest::default();
        loop {
            let answer = call(
                "ListSnapshots",
                LIST,
                self.client.controller().list_snapshots(request.clone()),
            )
            .await?;
            let ids = answer.entries.into_iter();
            snapshots.extend(ids.filter_map(|entry| Some(entry.snapshot?.snapshot_id)));
            if answer.next_token.is_empty() {
                return Ok(snapshots);
            }
            request.starting_token = answer.next_token;
        }
    }

    /// Lists all groups, each with the ids of its volumes.
    async fn groups(&self) -> Result<HashMap<String, HashSet<String>>, Failure> {
        let mut groups = HashMap::new();
        let mut request = ListVolumeGroupsRequest::default();
        loop {
            let mut client = self.client.groups();
            let answer = client.list_volume_groups(request.clone());
            let answer = call("ListVolumeGroups", LIST, answer).await?;
            let found = answer.entries.into_iter();
            groups.extend(found.filter_map(|entry| {
                let group = entry.volume_group?;
                let volumes = group.volumes.into_iter();
                let ids = volumes.map(|volume| volume.volume_id).collect();
                Some((group.volume_group_id, ids))
            }));
            if answer.next_token.is_empty() {
                return Ok(groups);
            }
            request.starting_token = answer.next_token;
        }
    }

    /// Checks that a mount still exists, and whether anything is wrong there; returns false if the agent does not answer.
    pub(crate) async fn verify_mount(&self, key: &ObjectKey, handle: &str, path: &str) -> bool {
        match stats_at(&self.client, handle, path).await {
            Err(failure) if failure.code == Code::NotFound => {
                tracing::warn!(object = %key, "mount missing");
                self.doubt(key);
                true
            }
            // A mount that cannot be checked must not stop the check of others.
            Err(failure) => failure.cause != Cause::Transport,
            Ok(stats) => {
                let problem = stats.volume_condition.and_then(abnormal);
                let is_told = |record: &Record| is_told(record, problem.as_deref());
                if self.shared.with(key, is_told) == Some(false) {
                    self.doubt(key);
                }
                true
            }
        }
    }
}

/// The observed resources; `None` for a list that could not be read.
#[derive(Default)]
struct ObservedState {
    volumes: Option<HashMap<String, ObservedVolume>>,
    snapshots: Option<HashSet<String>>,
    groups: Option<HashMap<String, HashSet<String>>>,
    /// The classes that could not be read, each with its error.
    unreadable: HashMap<String, String>,
}

/// A volume as observed.
struct ObservedVolume {
    bytes: i64,
    problem: Option<String>,
}

impl ObservedState {
    fn of(inventory: &Inventory) -> Self {
        let of_kind = |kind| inventory.iter().filter(move |object| object.kind() == kind);
        let volumes = of_kind(ObjectKind::Volume).map(|object| {
            let looks = ObservedVolume {
                bytes: object.size_bytes,
                problem: (!object.problem.is_empty()).then(|| object.problem.clone()),
            };
            (object.object_id.clone(), looks)
        });
        let snapshots = of_kind(ObjectKind::Snapshot);
        let groups = of_kind(ObjectKind::VolumeGroup).map(|object| {
            let members = object.volume_ids.iter().cloned();
            (object.object_id.clone(), members.collect())
        });
        Self {
            volumes: Some(volumes.collect()),
            snapshots: Some(snapshots.map(|object| object.object_id.clone()).collect()),
            groups: Some(groups.collect()),
            unreadable: inventory.unreadable_by_name().collect(),
        }
    }

    /// Returns true if the class of this handle could not be read.
    fn is_hidden(&self, handle: &str) -> bool {
        names::class_of(handle).is_some_and(|class| self.unreadable.contains_key(class))
    }

    /// Why nothing is known of an object: its class could not be read.
    fn hidden(&self, record: &Record) -> Option<String> {
        let class = names::class_of(record.handle()?)?;
        let why = self.unreadable.get(class)?;
        Some(format!("class {class} cannot be read: {why}"))
    }

    /// Returns true if an object differs from its record.
    fn differs_from(&self, record: &Record) -> bool {
        let lost = record.drumlin.lost;
        match &record.body {
            Body::Volume(Of { status, .. }) => {
                let handle = status.volume_handle.as_ref().zip(self.volumes.as_ref());
                handle.is_some_and(|(handle, volumes)| is_otherwise(record, volumes.get(handle)))
            }
            Body::Snapshot(Of { status, .. }) => {
                let handle = status.snapshot_handle.as_ref().zip(self.snapshots.as_ref());
                handle.is_some_and(|(handle, snapshots)| snapshots.contains(handle) == lost)
            }
            Body::Group(Of { status, .. }) => {
                let handle = status.group_handle.as_ref().zip(self.groups.as_ref());
                handle.is_some_and(|(handle, groups)| has_other_members(status, groups.get(handle)))
            }
            Body::GroupSnapshot(Of { status, .. }) => {
                let Some(snapshots) = &self.snapshots else {
                    return false;
                };
                let members = status.members.iter();
                let handles = members.filter_map(|member| member.snapshot_handle.as_ref());
                let mut handles = handles.filter(|handle| !self.is_hidden(handle));
                let is_lost = handles.any(|handle| !snapshots.contains(handle));
                status.group_snapshot_handle.is_some() && is_lost != lost
            }
            Body::Schedule(_) => false,
        }
    }
}

/// Returns the list, or `None` if it failed: an incomplete list would show objects as lost.
fn known<T>(answer: Result<T, Failure>) -> Option<T> {
    match answer {
        Ok(found) => Some(found),
        Err(failure) => {
            tracing::debug!(rpc.code = ?failure.code, error = %failure.message, "drift check failed");
            None
        }
    }
}

/// Returns true if a group has other members than its record, or does not exist.
fn has_other_members(status: &VolumeGroupStatus, found: Option<&HashSet<String>>) -> bool {
    let members = status.members.iter();
    let known = members
        .filter(|member| is_inside(member))
        .filter_map(|member| member.volume_handle.clone());
    found != Some(&known.collect())
}

/// Returns true if a volume differs from its record.
fn is_otherwise(record: &Record, found: Option<&ObservedVolume>) -> bool {
    let Body::Volume(Of { status, .. }) = &record.body else {
        return false;
    };
    let Some(found) = found else {
        return !record.drumlin.lost;
    };
    record.drumlin.lost
        || (found.bytes > 0 && Some(size(found.bytes)) != status.capacity)
        || !is_told(record, found.problem.as_deref())
}

/// Returns true if a record has this problem of its volume, or none as there is none.
fn is_told(record: &Record, problem: Option<&str>) -> bool {
    let told = record.condition("Drifted");
    // The condition message may be truncated at 128 bytes.
    let told = told.map(|drifted| drifted.message.trim_end_matches('…'));
    match problem {
        None => told.is_none(),
        Some(problem) => told.is_some_and(|told| problem.starts_with(told)),
    }
}
