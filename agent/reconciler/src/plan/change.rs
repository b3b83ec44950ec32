//! What happens to an object, from its record before and after a dry run and the calls between.

use std::collections::BTreeSet;

use drumlin_crd::{ObjectKey, Quantity, VolumeMount, names};
use drumlin_proto::drumlin::v1::InventoryObject;
use serde::Serialize;

use crate::{
    kinds::group_members::is_inside,
    record::{Body, Of, Record},
};

/// What would happen to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It would be created.
    Create,
    /// Its volume would grow.
    Grow,
    /// Members would join or leave its group.
    Members,
    /// It would be mounted, at another place or otherwise, or unmounted.
    Mount,
    /// It would get a resource that exists already, or its agent would note whose it is.
    Adopt,
    /// Something else would be requested for it.
    Update,
    /// It would be unmounted and its data kept, as its manifest asks.
    Release,
    /// Its data would be destroyed, as its manifest asks.
    Destroy,
    /// A person has to act before it can be as its manifest asks.
    Blocked,
    /// It waits for something that this plan does not bring.
    Waits,
    /// It has no manifest any more and stays as it is.
    Orphan,
}

/// One line of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedChange {
    /// What would happen.
    pub action: Action,
    /// Kind of the object.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What exactly, for people.
    pub detail: String,
    /// The RPCs that would be sent, in their order; one that is repeated stands once.
    pub rpcs: Vec<String>,
    /// The file of its manifest, or the last one; a snapshot of a schedule has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in it, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The schedule of a snapshot that has no manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The reason, as in its `Ready` condition; for what is blocked or waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Size of its data in bytes; for what would be destroyed, and for orphans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Since when it exists, or has no manifest, in RFC 3339; for what would be destroyed, and for orphans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// An object before and after a dry run.
pub(super) struct Difference<'a> {
    pub(super) before: Option<&'a Record>,
    /// The record that a dry run has left, or the last one where it has left none.
    pub(super) after: &'a Record,
    pub(super) calls: &'a [&'static str],
    /// Its resource as it is, where the agent says so.
    pub(super) found: Option<&'a InventoryObject>,
    /// Why its resource is destroyed and its record forgotten, for people, if no manifest asks for that.
    pub(super) destroyed: Option<&'a str>,
}

/// The lines of a plan, by action, kind, namespace and name.
pub(super) fn changes(differences: &[Difference<'_>]) -> Vec<PlannedChange> {
    let mut lines: Vec<PlannedChange> = differences.iter().flat_map(Difference::lines).collect();
    lines.sort_by(|a, b| {
        let place = |line: &PlannedChange| {
            let key = (line.namespace.clone(), line.name.clone());
            (line.action, rank(&line.kind), key)
        };
        place(a).cmp(&place(b))
    });
    lines
}

/// Kinds in the order in which they are created.
fn rank(kind: &str) -> usize {
    let kinds = [
        "Volume",
        "VolumeGroup",
        "Snapshot",
        "GroupSnapshot",
        "SnapshotSchedule",
    ];
    let place = kinds.iter().position(|one| *one == kind);
    place.unwrap_or(kinds.len())
}

impl Difference<'_> {
    fn lines(&self) -> Vec<PlannedChange> {
        if let Some(why) = self.destroyed {
            return vec![self.destruction(why)];
        }
        let mut lines = Vec::new();
        if let Some(since) = &self.after.drumlin.orphan_since {
            let mut line = self.line(Action::Orphan, "kept".to_owned());
            line.bytes = bytes(self.after);
            line.since = Some(since.clone());
            lines.push(line);
            return lines;
        }
        if let Body::Schedule(_) = &self.after.body {
            lines.extend(self.schedule());
        } else if !self.calls.is_empty() {
            let (action, mut details) = self.change();
            details.extend(self.last_failure());
            let mut line = self.line(action, details.join(", "));
            if matches!(action, Action::Destroy | Action::Release) {
                let had = self.before.unwrap_or(self.after);
                line.bytes = bytes(had);
                line.since = since(had);
            }
            lines.push(line);
        }
        if !self.after.is_settled()
            && let Some(line) = self.unsettled()
        {
            lines.push(line);
        }
        lines
    }

    /// The destruction of what has no manifest that could ask for it.
    fn destruction(&self, why: &str) -> PlannedChange {
        let mut details = vec![why.to_owned()];
        if self.is_trashed() {
            details.push("moved to the trash".to_owned());
        }
        let mut line = self.line(Action::Destroy, details.join(", "));
        line.bytes = bytes(self.after);
        line.since = since(self.after);
        line
    }

    /// What becomes of a schedule, which is in the reconciler alone: no call is about it.
    fn schedule(&self) -> Option<PlannedChange> {
        let was_there = self.before.filter(|before| !before.drumlin.destroyed);
        let detail = || timetable(self.after).unwrap_or_default();
        match was_there {
            None if self.after.is_absent() => None,
            None => Some(self.line(Action::Create, detail())),
            Some(_) if self.after.is_absent() => {
                let detail = "takes no more snapshots; those it took are kept".to_owned();
                Some(self.line(Action::Release, detail))
            }
            Some(before) if before.generation() != self.after.generation() => {
                let (had, has) = (retention(before), retention(self.after));
                let kept = if had == has {
                    String::new()
                } else {
                    format!(", keeps {has} in place of {had}")
                };
                Some(self.line(Action::Update, format!("{}{kept}", detail())))
            }
            Some(_) => None,
        }
    }

    fn line(&self, action: Action, detail: String) -> PlannedChange {
        let ObjectKey {
            kind,
            namespace,
            name,
        } = self.after.key();
        let mut rpcs: Vec<String> = Vec::new();
        for rpc in self.calls {
            if !rpcs.iter().any(|known| known == rpc) {
                rpcs.push((*rpc).to_owned());
            }
        }
        let place = self.after.place();
        PlannedChange {
            action,
            kind,
            namespace,
            name,
            detail,
            rpcs,
            file: place.map(|(file, _)| file.to_owned()),
            line: place.map(|(_, line)| line),
            schedule: match place {
                None => self.after.drumlin.schedule.clone(),
                Some(_) => None,
            },
            reason: None,
            bytes: None,
            since: None,
        }
    }

    /// What keeps the object from being as its manifest asks.
    fn unsettled(&self) -> Option<PlannedChange> {
        if self.after.is_paused() {
            let detail = format!("{} is set: nothing is requested for it", names::PAUSED);
            let mut line = self.line(Action::Waits, detail);
            line.reason = Some("Paused".to_owned());
            return Some(line);
        }
        let ready = self.after.condition("Ready")?;
        let is_stalled = self.after.condition("Stalled").is_some();
        let action = if is_stalled {
            Action::Blocked
        } else {
            Action::Waits
        };
        let mut line = self.line(action, ready.message.clone());
        line.rpcs = Vec::new();
        line.reason = Some(ready.reason.clone());
        Some(line)
    }

    /// Returns true if its volume goes to the trash, as the manifest or its class asks.
    fn is_trashed(&self) -> bool {
        let is_of_class = self.found.is_some_and(|found| found.to_trash);
        let is_blank = self.found.is_some_and(|found| found.blank);
        (self.calls("TrashVolume") && !is_blank) || (is_of_class && self.calls("DeleteVolume"))
    }

    /// The size of its resource as it is, in bytes.
    fn size(&self) -> Option<u64> {
        u64::try_from(self.found?.size_bytes).ok()
    }

    fn calls(&self, rpc: &str) -> bool {
        self.calls.contains(&rpc)
    }

    fn calls_a(&self, verb: &str) -> bool {
        self.calls.iter().any(|rpc| rpc.starts_with(verb))
    }

    /// What the calls amount to, and the details.
    fn change(&self) -> (Action, Vec<String>) {
        if self.after.is_absent() {
            let is_destroyed = self.after.deletion_policy().deletes();
            return if self.is_trashed() {
                (Action::Destroy, vec!["moved to the trash".to_owned()])
            } else if is_destroyed && self.calls_a("Delete") {
                (Action::Destroy, Vec::new())
            } else if is_destroyed {
                // What it waits for is in a line of its own.
                (Action::Update, Vec::new())
            } else {
                (Action::Release, vec!["data retained".to_owned()])
            };
        }
        if self.calls_a("Create") {
            return (Action::Create, self.creation());
        }
        let mut found: Vec<(Action, String)> = Vec::new();
        found.extend(self.growth().map(|detail| (Action::Grow, detail)));
        found.extend(self.membership().map(|detail| (Action::Members, detail)));
        found.extend(self.mount().map(|detail| (Action::Mount, detail)));
        if self.calls("SetOwner") {
            let handle = self.after.handle().unwrap_or_default();
            found.push((Action::Adopt, handle.to_owned()));
        }
        let action = found.first().map_or(Action::Update, |(action, _)| *action);
        (
            action,
            found.into_iter().map(|(_, detail)| detail).collect(),
        )
    }

    /// What would be created.
    fn creation(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        match &self.after.body {
            Body::Volume(Of { spec, .. }) => {
                words.push(spec.capacity.to_string());
                words.extend(spec.device_class.clone());
                words.extend(spec.fs_type.map(|kind| kind.as_str().to_owned()));
                if let Some(source) = self.after.sources().first() {
                    words.push(format!("from {}/{}", source.kind, source.name));
                }
                if let Some(mount) = &spec.mount {
                    words.push(format!("→ {}", mount.path));
                }
            }
            Body::Snapshot(_) | Body::GroupSnapshot(_) => {
                let sources = self.after.sources();
                words.extend(
                    sources
                        .iter()
                        .map(|source| format!("of {}/{}", source.kind, source.name)),
                );
            }
            Body::Group(_) => words.extend(self.membership()),
            Body::Schedule(_) => words.extend(timetable(self.after)),
        }
        let mut details = vec![words.join(" ")];
        details.retain(|detail| !detail.is_empty());
        details
    }

    /// How the last attempt failed, if it did.
    fn last_failure(&self) -> Option<String> {
        let last = self.before.cloned()?.last_operation().take()?;
        Some(format!(
            "last attempt failed: {}: {}",
            last.code, last.message
        ))
    }

    fn growth(&self) -> Option<String> {
        if !self.calls("ControllerExpandVolume") {
            return None;
        }
        let found = || self.size().map(Quantity::from_bytes);
        let has = capacity(self.after)?;
        let had = self.before.and_then(capacity).or_else(found);
        Some(had.map_or_else(|| format!("→ {has}"), |had| format!("{had} → {has}")))
    }

    /// The members that would join and leave.
    fn membership(&self) -> Option<String> {
        if !self.calls("ModifyVolumeGroupMembership") {
            return None;
        }
        let had = self.before.map(joined).unwrap_or_default();
        let has = joined(self.after);
        let more = has.difference(&had).map(|name| format!("+{name}"));
        let less = had.difference(&has).map(|name| format!("-{name}"));
        Some(more.chain(less).collect::<Vec<_>>().join(" "))
    }

    /// How the mount would change.
    fn mount(&self) -> Option<String> {
        let is_mounted = self.calls("NodePublishVolume");
        let is_unmounted = self.calls("NodeUnpublishVolume");
        let had = self
            .before
            .and_then(|record| record.drumlin.mounted.clone());
        let has = &self.after.drumlin.mounted;
        match (had, has) {
            (Some(had), Some(has)) if is_mounted && is_unmounted => Some(moved(&had, has)),
            (_, Some(has)) if is_mounted => Some(format!("→ {}", has.path)),
            (Some(had), None) if is_unmounted => Some(format!("unmount {}", had.path)),
            _ => None,
        }
    }

    /// The class and the number of bytes that it needs in it, if any.
    pub(super) fn needs(&self) -> Option<(String, u64)> {
        let Body::Volume(Of { spec, status }) = &self.after.body else {
            return None;
        };
        let wanted = spec.capacity.bytes().ok()?;
        if self.calls("CreateVolume") {
            return Some((spec.device_class.clone().unwrap_or_default(), wanted));
        }
        if !self.calls("ControllerExpandVolume") {
            return None;
        }
        let class = status.device_class.clone()?;
        let had = self.before.and_then(bytes).or(self.size()).unwrap_or(0);
        Some((class, wanted.saturating_sub(had)))
    }
}

fn moved(had: &VolumeMount, has: &VolumeMount) -> String {
    if had.path != has.path {
        return format!("{} → {}", had.path, has.path);
    }
    let options = |mount: &VolumeMount| {
        let mut options = mount.options.clone();
        options.extend(mount.read_only.then(|| "ro".to_owned()));
        options.join(",")
    };
    format!(
        "remount {}: {:?} → {:?}",
        has.path,
        options(had),
        options(has)
    )
}

/// The times and the target of a schedule.
fn timetable(record: &Record) -> Option<String> {
    let Body::Schedule(Of { spec, status }) = &record.body else {
        return None;
    };
    let target = record.sources();
    let target = target
        .first()
        .map(|target| format!("{}/{}", target.kind, target.name));
    let next = status.next_time.as_deref().unwrap_or("suspended");
    Some(format!(
        "{} of {}, next {next}",
        spec.schedule,
        target.unwrap_or_default()
    ))
}

/// What a schedule keeps, as in its manifest.
fn retention(record: &Record) -> String {
    let Body::Schedule(Of { spec, .. }) = &record.body else {
        return String::new();
    };
    let Some(kept) = &spec.retention else {
        return "all snapshots".to_owned();
    };
    let rules = [
        ("keepLast", kept.keep_last),
        ("hourly", kept.hourly),
        ("daily", kept.daily),
        ("weekly", kept.weekly),
        ("monthly", kept.monthly),
        ("yearly", kept.yearly),
    ];
    let rules = rules.iter().filter(|(_, number)| *number > 0);
    let rules: Vec<String> = rules
        .map(|(rule, number)| format!("{rule} {number}"))
        .collect();
    rules.join(" ")
}

/// Since when the data of an object exists, in RFC 3339.
fn since(record: &Record) -> Option<String> {
    let of_snapshot = match &record.body {
        Body::Snapshot(Of { status, .. }) => status.creation_time.clone(),
        Body::GroupSnapshot(Of { status, .. }) => status.creation_time.clone(),
        Body::Volume(_) | Body::Group(_) | Body::Schedule(_) => None,
    };
    of_snapshot.or_else(|| {
        let made = record.metadata.creation_timestamp.as_ref()?;
        Some(made.0.to_string())
    })
}

/// The names of the members that are in a group.
fn joined(record: &Record) -> BTreeSet<String> {
    let Body::Group(Of { status, .. }) = &record.body else {
        return BTreeSet::new();
    };
    let inside = status.members.iter();
    let inside = inside.filter(|member| is_inside(member));
    inside.map(|member| member.name.clone()).collect()
}

/// The size of a volume.
fn capacity(record: &Record) -> Option<Quantity> {
    match &record.body {
        Body::Volume(Of { status, .. }) => status.capacity.clone(),
        _ => None,
    }
}

/// The size of the data of an object, in bytes.
fn bytes(record: &Record) -> Option<u64> {
    let of = |size: &Option<Quantity>| size.as_ref().and_then(|size| size.bytes().ok());
    match &record.body {
        Body::Volume(Of { status, .. }) => of(&status.capacity),
        Body::Snapshot(Of { status, .. }) => of(&status.restore_size),
        Body::GroupSnapshot(Of { status, .. }) => {
            let sizes = status.members.iter();
            Some(sizes.filter_map(|member| of(&member.restore_size)).sum())
        }
        Body::Group(_) | Body::Schedule(_) => None,
    }
}
