//! The persistent record of an object: its last valid spec, its status, and the intended next step.

mod body;
mod group;
mod group_snapshot;
mod schedule;
mod served;
mod snapshot;
mod verdict;
mod volume;

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use drumlin_crd::{
    FsType, LastOperation, MemberKind, Object, ObjectKey, VolumeDeletionPolicy, VolumeMount, names,
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
    jiff::{SignedDuration, Timestamp},
};
use serde::{Deserialize, Serialize};

pub(crate) use body::{Body, Of};
pub(crate) use schedule::{AppliedRetention, Run, Runs};
pub(crate) use served::Served;
pub(crate) use verdict::{Event, State, Verdict, judge};

/// The version of the record format; a record of a higher version is left unchanged.
pub(crate) const VERSION: u32 = 1;

/// An object on disk: the same JSON as `kubectl get -o json`, with private data of the reconciler beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) metadata: ObjectMeta,
    #[serde(flatten)]
    pub(crate) body: Body,
    pub(crate) drumlin: Book,
}

/// Private data of the reconciler.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and any of them may hold"
)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Book {
    /// The version of the record format.
    pub(crate) version: u32,
    /// The file of its last manifest.
    pub(crate) file: String,
    /// The line in that file.
    pub(crate) line: usize,
    /// The incarnation: distinguishes a recreated object from its predecessor.
    pub(crate) incarnation: String,
    /// Since when it has no manifest; it is retained unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) orphan_since: Option<String>,
    /// The arguments of `CreateVolume`, identical in every retry; none once it has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) create: Option<CreateIntent>,
    /// The intended mount: written before the call, so that it can be unmounted after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mounted: Option<VolumeMount>,
    /// The restrictions that were applied to `mounted`, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) confined: Option<crate::kinds::Confined>,
    /// The directory that was there before the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mount_point: Option<crate::kinds::MountPoint>,
    /// The boot in which `mounted` was confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot: Option<String>,
    /// The file system still has to be grown to the size of its volume.
    #[serde(default)]
    pub(crate) grow_file_system: bool,
    /// The volume was created and no longer exists; it is not recreated until a person requests it.
    #[serde(default)]
    pub(crate) lost: bool,
    /// The deletion or release that `state: absent` requests is complete.
    #[serde(default)]
    pub(crate) destroyed: bool,
    /// The volume that was deleted is in the trash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_trashed: bool,
    /// Its manifest is gone, and it is destroyed because of that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_pruned: bool,
    /// The agent still records another owner, or none, for its resource.
    #[serde(default)]
    pub(crate) owner_unset: bool,
    /// The handles of the members that the reconciler applied to this group, without those that other callers added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) applied: Vec<String>,
    /// The last transitions, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<Event>,
    /// The schedule that this snapshot belongs to instead of a manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) schedule: Option<String>,
    /// What this schedule has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runs: Option<Runs>,
    /// The API server metadata, if it came from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) served: Option<Served>,
}

/// The arguments of `CreateVolume` that must be identical in every retry (idempotency).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CreateIntent {
    /// The requested capacity, in bytes.
    pub(crate) bytes: u64,
    /// The requested file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fs_type: Option<FsType>,
    /// The requested mount options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) mount_flags: Vec<String>,
    /// The handle of the source snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<String>,
    /// The handle of the source volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) volume: Option<String>,
    /// The parameters.
    pub(crate) parameters: BTreeMap<String, String>,
}

impl Record {
    /// Creates the record of a new object.
    pub(crate) fn new(object: &Object, file: &str, line: usize) -> Self {
        let mut metadata = object.metadata().clone();
        metadata.generation = Some(1);
        // In whole seconds, as in an API server.
        let now = Timestamp::from_second(Timestamp::now().as_second());
        metadata.creation_timestamp = now.ok().map(Time);
        Self {
            api_version: names::API_VERSION.to_owned(),
            kind: object.key().kind,
            metadata,
            body: Body::of(object),
            drumlin: Book {
                version: VERSION,
                file: file.to_owned(),
                line,
                incarnation: incarnation(),
                orphan_since: None,
                create: None,
                mounted: None,
                confined: None,
                mount_point: None,
                boot: None,
                grow_file_system: false,
                lost: false,
                destroyed: false,
                is_trashed: false,
                is_pruned: false,
                owner_unset: false,
                applied: Vec::new(),
                events: Vec::new(),
                schedule: None,
                runs: None,
                served: None,
            },
        }
    }

    /// The key of the object.
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey {
            kind: self.kind.clone(),
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            name: self.metadata.name.clone().unwrap_or_default(),
        }
    }

    /// The last valid object.
    pub(crate) fn object(&self) -> Object {
        self.body.kind().object(self.metadata.clone())
    }

    /// The file and the line of its manifest, or of its last one; none for what is in no file: an object of an API server, or
    /// a snapshot of a schedule.
    pub(crate) fn place(&self) -> Option<(&str, usize)> {
        let line = self.drumlin.line;
        (line > 0).then_some((&*self.drumlin.file, line))
    }

    /// Returns true if a manifest at this place (file and line) changes nothing.
    pub(crate) fn says(&self, object: &Object, (file, line): (&str, usize)) -> bool {
        let metadata = object.metadata();
        self.body.kind().is_spec_of(object)
            && self.metadata.annotations == metadata.annotations
            && self.metadata.labels == metadata.labels
            && self.drumlin.orphan_since.is_none()
            && !self.drumlin.is_pruned
            && self.drumlin.file == file
            && self.drumlin.line == line
    }

    /// Updates the record from its manifest; returns true if anything changed.
    pub(crate) fn adopt(&mut self, object: &Object, (file, line): (&str, usize)) -> bool {
        if self.says(object, (file, line)) {
            return false;
        }
        let place = self.metadata.generation;
        let before = (self.body.clone(), self.metadata.clone());
        self.body.kind_mut().take_spec(Body::of(object));
        let metadata = object.metadata();
        self.metadata.annotations.clone_from(&metadata.annotations);
        self.metadata.labels.clone_from(&metadata.labels);
        // Another file, or a return from being an orphan, does not change the spec.
        if (&self.body, &self.metadata) != (&before.0, &before.1) {
            self.metadata.generation = place.map(|generation| generation + 1);
        }
        self.drumlin.orphan_since = None;
        self.drumlin.is_pruned = false;
        if self.drumlin.served.take().is_some() {
            self.unsettle();
            self.drumlin.owner_unset = true;
        }
        // A snapshot of a schedule that has a manifest belongs to that.
        self.drumlin.schedule = None;
        file.clone_into(&mut self.drumlin.file);
        self.drumlin.line = line;
        true
    }

    /// Has an orphan destroyed as its last manifest would by `drumlin.dev/state: absent`. Returns true if it is one.
    pub(crate) fn prune(&mut self) -> bool {
        if self.drumlin.orphan_since.take().is_none() {
            return false;
        }
        self.drumlin.is_pruned = true;
        let annotations = self.metadata.annotations.get_or_insert_default();
        annotations.insert(names::STATE.to_owned(), "absent".to_owned());
        self.metadata.generation = Some(self.generation() + 1);
        true
    }

    /// Takes over the parts that manifests and other objects write, from the current record, and leaves the parts that
    /// a pass writes.
    pub(crate) fn take_over(&mut self, now: Self) {
        self.metadata = now.metadata;
        self.body.kind_mut().take_shared_status(&now.body);
        self.body.kind_mut().take_spec(now.body);
        self.drumlin.file = now.drumlin.file;
        self.drumlin.line = now.drumlin.line;
        self.drumlin.orphan_since = now.drumlin.orphan_since;
        self.drumlin.is_pruned = now.drumlin.is_pruned;
        self.drumlin.schedule = now.drumlin.schedule;
        self.take_over_served(now.drumlin.served);
    }

    /// Returns true if a group selects this volume, by its name or its labels.
    pub(crate) fn wants(&self, volume: &Self) -> bool {
        let Body::Group(Of { spec, .. }) = &self.body else {
            return false;
        };
        if volume.kind != "Volume"
            || self.metadata.namespace != volume.metadata.namespace
            || !self.may_use(volume)
        {
            return false;
        }
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        match (&spec.members, &spec.selector) {
            (Some(members), _) => members
                .iter()
                .any(|member| member.kind == MemberKind::Volume && member.name == name),
            (None, Some(selector)) => selector.matches(volume.metadata.labels.as_ref()),
            (None, None) => false,
        }
    }

    /// Returns true if two groups may select the same volume.
    pub(crate) fn may_rival(&self, other: &Self) -> bool {
        let (Body::Group(Of { spec, .. }), Body::Group(Of { spec: others, .. })) =
            (&self.body, &other.body)
        else {
            return false;
        };
        if self.metadata.namespace != other.metadata.namespace || self.key() == other.key() {
            return false;
        }
        match (&spec.members, &others.members) {
            (Some(members), Some(others)) => members.iter().any(|member| others.contains(member)),
            // Which volumes a selector matches is known for each single volume only.
            _ => true,
        }
    }

    /// The objects that it refers to by name: its source, its group, or its members.
    pub(crate) fn sources(&self) -> Vec<ObjectKey> {
        let namespace = self.key().namespace;
        let named = self.body.kind().references().into_iter();
        let keys = named.map(|(kind, name)| ObjectKey {
            kind: kind.to_owned(),
            namespace: namespace.clone(),
            name: name.to_owned(),
        });
        keys.collect()
    }

    /// Returns true if the agent may have resources of it; if not, the record can simply be removed.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_state_lost() || self.is_begun_here()
    }

    /// The same, as far as its record shows.
    pub(crate) fn is_begun_here(&self) -> bool {
        self.body.kind().is_begun(&self.drumlin)
    }

    /// Returns true if it comes again from its manifest, or from the API server, as it is: nothing was begun for it.
    pub(crate) fn comes_again(&self) -> bool {
        // The runs of a schedule are in no manifest, and neither are its snapshots.
        let is_of_schedule = self.drumlin.schedule.is_some();
        !self.is_begun() && !is_of_schedule && !matches!(self.body, Body::Schedule(_))
    }

    /// The generation of its manifest.
    pub(crate) fn generation(&self) -> i64 {
        self.metadata.generation.unwrap_or(1)
    }

    /// One of its annotations.
    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    /// Returns true if it shall be deleted or released, by its deletion policy.
    pub(crate) fn is_absent(&self) -> bool {
        self.annotation(names::STATE) == Some("absent")
            || self.served().is_some_and(|served| served.is_deleting)
    }

    /// Returns true if the request of `state: absent` is complete: an object that was released, but shall be deleted
    /// since, is not.
    pub(crate) fn is_destroyed(&self) -> bool {
        let ready = self.condition("Ready");
        let is_released = ready.is_some_and(|ready| ready.reason == "Released");
        self.drumlin.destroyed && !(is_released && self.deletion_policy().deletes())
    }

    /// Returns true if the record is no longer needed: the requested deletion is complete, or nothing was ever created.
    pub(crate) fn is_nothing(&self) -> bool {
        (self.is_absent() && self.is_destroyed()) || !self.is_begun()
    }

    /// The handle of its resource.
    pub(crate) fn handle(&self) -> Option<&str> {
        self.body.kind().handle()
    }

    /// The CSI name of its volume, which is also the name of its staging directory.
    pub(crate) fn csi_name(&self) -> Option<&str> {
        match &self.body {
            Body::Volume(Of { status, .. }) => status.csi_name.as_deref(),
            _ => None,
        }
    }

    /// Returns true if it comes from a manifest file, and not from an API server.
    pub(crate) fn is_of_file(&self) -> bool {
        self.served().is_none()
    }

    /// Returns true if it comes from a manifest file and is not a snapshot of a schedule, which has none.
    pub(crate) fn has_manifest(&self) -> bool {
        self.is_of_file() && self.drumlin.schedule.is_none()
    }

    /// Returns true if it comes from a file and its handle begins with another node name.
    pub(crate) fn is_of_former_name(&self, here: &str) -> bool {
        let node = self.handle().and_then(names::node_of);
        self.is_of_file() && node.is_some_and(|node| node != here)
    }

    /// Returns true if reconciliation is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.annotation(names::PAUSED) == Some("true")
    }

    /// The node that its manifest names.
    pub(crate) fn node(&self) -> Option<&str> {
        self.body.kind().node()
    }

    /// The deletion policy.
    pub(crate) fn deletion_policy(&self) -> VolumeDeletionPolicy {
        if self.served().is_some_and(|served| served.is_kept) {
            return VolumeDeletionPolicy::Retain;
        }
        self.body.kind().deletion_policy()
    }

    /// The last failed call.
    pub(crate) fn last_operation(&mut self) -> &mut Option<LastOperation> {
        self.body.kind_mut().status_mut().last_operation_mut()
    }

    /// Returns true if there is no work left: reconciled since its manifest changed, and ready or gone.
    pub(crate) fn is_settled(&self) -> bool {
        let (observed, _) = self.observed();
        let is_done = if self.is_absent() {
            self.drumlin.destroyed
        } else {
            self.is_ready()
        };
        is_done && observed == self.generation()
    }

    /// The conditions belong to an earlier object; this one was not reconciled yet.
    pub(crate) fn unsettle(&mut self) {
        *self.body.kind_mut().status_mut().seen_mut().0 = -1;
    }

    /// Returns true if it is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.condition("Ready")
            .is_some_and(|ready| ready.status == "True")
    }

    /// One of its conditions.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.observed()
            .1
            .iter()
            .find(|condition| condition.type_ == kind)
    }

    /// All of its conditions.
    pub(crate) fn conditions(&self) -> &[Condition] {
        self.observed().1
    }

    /// The generation that its conditions are about.
    pub(crate) fn observed_generation(&self) -> i64 {
        self.observed().0
    }

    fn observed(&self) -> (i64, &Vec<Condition>) {
        self.body.kind().status().seen()
    }
}

/// The current time in RFC 3339, as Kubernetes writes it.
pub(crate) fn now() -> String {
    Timestamp::now().to_string()
}

/// A time in RFC 3339.
pub fn rfc3339(time: SystemTime) -> Option<String> {
    Timestamp::try_from(time).ok().map(|time| time.to_string())
}

/// The time after this pause, in RFC 3339.
pub(crate) fn after(pause: Duration) -> String {
    let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX);
    let moment = Timestamp::now().saturating_add(pause);
    moment.unwrap_or(Timestamp::MAX).to_string()
}

/// A unique identifier of an incarnation.
fn incarnation() -> String {
    let now = Timestamp::now().as_nanosecond();
    format!("{now:x}-{:x}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// This format is on the disks of hosts: a change here needs a new version.
    #[test]
    fn the_fields_of_a_record_are_these() {
        let drumlin = json!({
            "version": VERSION,
            "file": "a.yaml",
            "line": 3,
            "incarnation": "0b0c8a50",
            "orphanSince": "2026-11-25T01:00:00Z",
            "create": {
                "bytes": 16_777_216,
                "fsType": "ext4",
                "mountFlags": ["noatime"],
                "snapshot": "n/c/1",
                "volume": "n/c/2",
                "parameters": {"class": "fast"},
            },
            "mounted": {"path": "/srv/a", "readOnly": false},
            "confined": {"root": "/srv", "options": ["nosuid"]},
            "mountPoint": {"uid": 1, "gid": 2, "mode": 448},
            "boot": "b1",
            "growFileSystem": true,
            "lost": false,
            "destroyed": false,
            "isTrashed": true,
            "isPruned": true,
            "ownerUnset": true,
            "applied": ["n/c/1"],
            "events": [{
                "time": "2026-11-25T01:00:00Z",
                "reason": "Created",
                "message": "16Mi, not mounted",
                "count": 1,
            }],
            "schedule": "pg-hourly",
            "runs": {
                "current": {"slot": "2026-11-27T13:00:00Z", "isMade": true},
                "failure": "InsufficientCapacity",
                "isAhead": true,
            },
            "served": {
                "uid": "u",
                "namespaceUid": "v",
                "hasFinalizer": true,
                "isDeleting": false,
                "isKept": false,
                "isStateLost": false,
            },
        });
        let text = json!({
            "apiVersion": names::API_VERSION,
            "kind": "Volume",
            "metadata": {"name": "a"},
            "spec": {"capacity": "16Mi"},
            "drumlin": drumlin.clone(),
        });
        let record: Record = serde_json::from_value(text).unwrap();
        assert_eq!(serde_json::to_value(record).unwrap()["drumlin"], drumlin);
    }
}
