//! Generates the manifests that restore a snapshot, from the state files alone. Nothing is applied: a person decides
//! where to.

use std::{collections::BTreeMap, fmt::Write, path::Path};

use drumlin_crd::{
    DeletionPolicy, GroupMember, GroupSnapshotMember, MemberKind, MemberSnapshot, ObjectKey,
    Quantity, Volume, VolumeDeletionPolicy, VolumeGroup, VolumeGroupSpec, VolumeMode, VolumeSource,
    VolumeSpec, names, to_yaml,
};
use serde::Serialize;

use crate::{
    Error,
    record::{Body, Of, Record},
    store::{self, DIRECTORY},
};

/// The manifests that create volumes from a snapshot, or from all members of a group snapshot with a group of them;
/// each is named like its original, with `suffix` appended.
///
/// # Errors
/// When there is no such snapshot, it is not ready, or a new name already exists or is not valid.
pub fn manifests(state_dir: &Path, key: &ObjectKey, suffix: &str) -> Result<String, Error> {
    let root = state_dir.join(DIRECTORY);
    let (records, unreadable) = store::load(&root)?;
    let here = store::path(&root, key)?;
    if let Some(one) = unreadable.iter().find(|one| one.path == here) {
        let why = format!("{key}: could not read its state file: {}", one.why);
        return Err(Error::Restore(why));
    }
    let record = records.iter().find(|record| record.key() == *key);
    let record = record.ok_or_else(|| {
        Error::Restore(format!(
            "{key}: not found; `drumlin status` lists all objects"
        ))
    })?;
    let restore = Restore {
        records: &records,
        record,
        suffix,
    };
    restore.check_ready()?;
    match &record.body {
        Body::GroupSnapshot(_) => restore.group(),
        _ => restore.one(),
    }
}

/// A snapshot, and all records.
struct Restore<'a> {
    records: &'a [Record],
    record: &'a Record,
    suffix: &'a str,
}

/// A volume that a snapshot was taken of.
struct Kept<'a> {
    /// Its name in manifests, if it has one.
    name: &'a str,
    /// The kind of that name.
    kind: MemberKind,
    /// True if an object of the other kind has the same name.
    is_told_by_kind: bool,
    /// The handle of its volume.
    handle: &'a str,
    /// The minimum size of a restored volume, in bytes.
    size: u64,
    source: VolumeSource,
}

impl Restore<'_> {
    fn check_ready(&self) -> Result<(), Error> {
        let key = self.record.key();
        let is_ready = match &self.record.body {
            Body::Snapshot(Of { status, .. }) => status.ready_to_use,
            Body::GroupSnapshot(Of { status, .. }) => status.ready_to_use,
            _ => return Err(Error::Restore(format!("{key}: is not a snapshot"))),
        };
        if is_ready && !self.record.is_absent() {
            return Ok(());
        }
        let told = self.record.condition("Ready");
        let told = told.map(|ready| format!(": {}: {}", ready.reason, ready.message));
        Err(Error::Restore(format!(
            "{key}: is not ready{}",
            told.unwrap_or_default()
        )))
    }

    /// The manifests of all members, and of a group of them.
    fn group(&self) -> Result<String, Error> {
        let Body::GroupSnapshot(Of { spec, status }) = &self.record.body else {
            return Ok(String::new());
        };
        let mut documents = Vec::new();
        let mut members = Vec::new();
        for member in &status.members {
            let kept = self.kept(member, &status.members);
            let name = self.new_name("Volume", &called(&kept))?;
            documents.push(self.volume(&name, kept)?);
            let kind = MemberKind::Volume;
            members.push(GroupMember { kind, name });
        }
        let before = self.sibling("VolumeGroup", &spec.group_name);
        let before = before.and_then(|record| match &record.body {
            Body::Group(Of { spec, .. }) => Some(&**spec),
            _ => None,
        });
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let group = VolumeGroupSpec {
            node_name: self.record.node().map(str::to_owned),
            members: Some(members),
            selector: None,
            min_members: before.map_or(1, |before| before.min_members.min(count)),
            parameters: before.map_or_else(BTreeMap::new, |before| before.parameters.clone()),
            deletion_policy: before.map_or(DeletionPolicy::Delete, |before| before.deletion_policy),
        };
        let name = self.new_name("VolumeGroup", &spec.group_name)?;
        let mut group = VolumeGroup::new(&name, group);
        group.metadata.namespace = Some(self.record.key().namespace);
        documents.push(yaml(&group)?);
        Ok(self.text(status.creation_time.as_ref(), &documents))
    }

    /// The manifest of one volume.
    fn one(&self) -> Result<String, Error> {
        let Body::Snapshot(Of { spec, status }) = &self.record.body else {
            return Ok(String::new());
        };
        let kept = Kept {
            name: spec.source.volume_name.as_deref().unwrap_or_default(),
            kind: MemberKind::Volume,
            is_told_by_kind: false,
            handle: status.source_volume_handle.as_deref().unwrap_or_default(),
            size: bytes(status.restore_size.as_ref()),
            source: VolumeSource {
                snapshot_name: Some(self.record.key().name),
                ..VolumeSource::default()
            },
        };
        let name = self.new_name("Volume", &called(&kept))?;
        let volume = self.volume(&name, kept)?;
        Ok(self.text(status.creation_time.as_ref(), &[volume]))
    }

    fn text(&self, moment: Option<&String>, documents: &[String]) -> String {
        format!(
            "# From {} of {}. Nothing is applied yet: check it, and add it to the manifests.\n{}",
            self.record.key(),
            moment.map_or("an unknown time", String::as_str),
            documents.join("---\n")
        )
    }

    /// Describes one member.
    fn kept<'a>(&self, member: &'a MemberSnapshot, all: &[MemberSnapshot]) -> Kept<'a> {
        // A member without a name is selected by its handle.
        let by = if member.name.is_empty() {
            &member.volume_handle
        } else {
            &member.name
        };
        let kind = if member.kind == MemberKind::PersistentVolumeClaim.to_string() {
            MemberKind::PersistentVolumeClaim
        } else {
            MemberKind::Volume
        };
        let is_like = |other: &&MemberSnapshot| other.name == member.name;
        let is_told_by_kind = !member.name.is_empty() && all.iter().filter(is_like).count() > 1;
        Kept {
            name: &member.name,
            kind,
            is_told_by_kind,
            handle: &member.volume_handle,
            size: bytes(member.restore_size.as_ref()),
            source: VolumeSource {
                group_snapshot: Some(GroupSnapshotMember {
                    name: self.record.key().name,
                    member: by.clone(),
                    member_kind: is_told_by_kind.then_some(kind),
                }),
                ..VolumeSource::default()
            },
        }
    }

    /// The manifest of a restored volume, with comments on what to check.
    fn volume(&self, name: &str, kept: Kept<'_>) -> Result<String, Error> {
        let mut text = format!("# A copy of volume {}.\n", kept.handle);
        // A PersistentVolumeClaim has no manifest here.
        let before = Some(kept.name).filter(|_| kept.kind == MemberKind::Volume);
        let before = before.and_then(|name| self.sibling("Volume", name));
        let before = before.and_then(|record| match &record.body {
            Body::Volume(Of { spec, .. }) => Some((record, &**spec)),
            _ => None,
        });
        let mut volume = if let Some((record, spec)) = before {
            self.like(&mut text, record, spec)
        } else {
            text += "# The volume has no manifest any more: check class, fsType and volumeMode.\n";
            blank(names::class_of(kept.handle).map(str::to_owned))
        };
        volume.metadata.name = Some(name.to_owned());
        volume.metadata.namespace = Some(self.record.key().namespace);
        let spec = &mut volume.spec;
        if let Some(node) = self.record.node() {
            spec.node_name = Some(node.to_owned());
        }
        if bytes(Some(&spec.capacity)) < kept.size {
            spec.capacity = Quantity::from_bytes(kept.size);
        }
        spec.source = Some(kept.source);
        Ok(text + &yaml(&volume)?)
    }

    /// A volume like another one, without its mount path and, if they would add it to a group, without its labels.
    fn like(&self, text: &mut String, record: &Record, spec: &VolumeSpec) -> Volume {
        let old = record.key().name;
        let mut volume = Volume::new("", spec.clone());
        if let Some(group) = self.group_of_labels(record) {
            let _ = writeln!(
                text,
                "# Without the labels of {old}: with them it would join group {group}."
            );
        } else {
            volume.metadata.labels.clone_from(&record.metadata.labels);
        }
        if let Some(mount) = volume.spec.mount.take() {
            let _ = writeln!(
                text,
                "# Not mounted, because {old} is mounted at {}: set another path, or this one after {old} is unmounted.",
                mount.path
            );
        }
        volume.spec.deletion_policy = VolumeDeletionPolicy::Retain;
        volume
    }

    /// The name of a group that selects all volumes with the labels of this one.
    fn group_of_labels(&self, volume: &Record) -> Option<String> {
        let mut groups = self.records.iter();
        let group = groups.find(|group| {
            let by_labels =
                matches!(&group.body, Body::Group(Of { spec, .. }) if spec.selector.is_some());
            by_labels && group.wants(volume)
        });
        group.map(|group| group.key().name)
    }

    fn sibling(&self, kind: &str, name: &str) -> Option<&Record> {
        let key = ObjectKey {
            kind: kind.to_owned(),
            name: name.to_owned(),
            namespace: self.record.key().namespace,
        };
        self.records.iter().find(|record| record.key() == key)
    }

    /// The name of a copy.
    fn new_name(&self, kind: &str, old: &str) -> Result<String, Error> {
        let name = format!("{old}{}", self.suffix);
        if !names::is_subdomain(&name) {
            return Err(Error::Restore(format!(
                "--suffix {:?}: {name:?} is not a valid name",
                self.suffix
            )));
        }
        if self.sibling(kind, &name).is_some() {
            return Err(Error::Restore(format!(
                "{kind} {name} already exists; choose another --suffix"
            )));
        }
        Ok(name)
    }
}

/// The base of the name of a copy: the name of the original, or the last part of its handle as a valid name.
fn called(kept: &Kept<'_>) -> String {
    if kept.is_told_by_kind && kept.kind == MemberKind::PersistentVolumeClaim {
        return format!("{}-claim", kept.name);
    }
    if !kept.name.is_empty() {
        return kept.name.to_owned();
    }
    let last = kept.handle.rsplit('/').next().unwrap_or_default();
    let character = |character: char| match character.to_ascii_lowercase() {
        character if character.is_ascii_alphanumeric() => character,
        _ => '-',
    };
    format!("volume-{}", last.chars().map(character).collect::<String>())
}

fn bytes(size: Option<&Quantity>) -> u64 {
    size.and_then(|size| size.bytes().ok()).unwrap_or(0)
}

/// A volume without known properties.
fn blank(device_class: Option<String>) -> Volume {
    let spec = VolumeSpec {
        node_name: None,
        device_class,
        capacity: Quantity::from_bytes(0),
        volume_mode: VolumeMode::default(),
        fs_type: None,
        source: None,
        mount: None,
        parameters: BTreeMap::new(),
        deletion_policy: VolumeDeletionPolicy::Retain,
    };
    Volume::new("", spec)
}

fn yaml<T: Serialize>(object: &T) -> Result<String, Error> {
    let value = serde_json::to_value(object)
        .map_err(|error| Error::Restore(format!("could not serialize a manifest: {error}")))?;
    Ok(to_yaml(&value))
}
