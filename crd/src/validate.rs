//! The validation rules of the schemas, for manifests that were not checked by an API server: same results, same
//! messages.

use std::collections::BTreeMap;

use crate::{
    GroupMember, GroupSnapshotMember, GroupSnapshotSpec, Quantity, Retention, ScheduleTarget,
    Selector, SnapshotScheduleSpec, SnapshotSpec, VolumeGroupSpec, VolumeMount, VolumeSource,
    VolumeSpec,
    cron::{self, Cron},
    names,
};

/// A problem of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The path of the field, such as `spec.mount.path`.
    pub field: String,
    /// Description of the problem, and what is valid.
    pub message: String,
}

/// Collects problems with their fields.
#[derive(Debug, Default)]
struct Checks(Vec<FieldError>);

impl Checks {
    fn that(&mut self, holds: bool, field: &str, message: impl Into<String>) {
        if !holds {
            self.0.push(FieldError {
                field: field.to_owned(),
                message: message.into(),
            });
        }
    }

    fn name(&mut self, value: Option<&String>, field: &str) {
        if let Some(value) = value {
            self.that(
                (1..=253).contains(&value.len()),
                field,
                "must have 1 to 253 characters",
            );
        }
    }
}

impl Checks {
    fn parameters(&mut self, parameters: &BTreeMap<String, String>) {
        self.that(
            parameters.len() <= 64,
            "spec.parameters",
            "must have at most 64 entries",
        );
    }

    /// A node name is immutable once set.
    fn node(&mut self, old: Option<&String>, new: Option<&String>) {
        self.that(
            old.is_none() || old == new,
            "spec.nodeName",
            "cannot be changed once it is set",
        );
    }
}

/// Problems of the spec of a volume.
pub fn volume(spec: &VolumeSpec) -> Vec<FieldError> {
    let mut checks = Checks::default();
    checks.name(spec.node_name.as_ref(), "spec.nodeName");
    checks.that(
        spec.device_class.as_deref().is_none_or(names::is_label),
        "spec.deviceClass",
        "must be 1 to 63 lower-case letters, digits and '-'",
    );
    match spec.capacity.bytes() {
        Ok(bytes) => {
            checks.that(bytes > 0, "spec.capacity", "must be greater than 0");
            checks.that(
                !spec.capacity.is_of_parts(),
                "spec.capacity",
                format!(
                    "{:?} is in parts of a byte: use M or Mi for megabytes",
                    spec.capacity.to_string()
                ),
            );
        }
        Err(error) => checks.that(false, "spec.capacity", error.to_string()),
    }
    checks.parameters(&spec.parameters);
    if let Some(source) = &spec.source {
        check_source(&mut checks, source);
    }
    if let Some(mount) = &spec.mount {
        check_mount(&mut checks, mount);
    }
    checks.0
}

fn check_source(checks: &mut Checks, source: &VolumeSource) {
    let VolumeSource {
        snapshot_name,
        group_snapshot,
        volume_name,
    } = source;
    let set = [
        snapshot_name.is_some(),
        group_snapshot.is_some(),
        volume_name.is_some(),
    ];
    checks.that(
        set.into_iter().filter(|set| *set).count() == 1,
        "spec.source",
        "exactly one of snapshotName, groupSnapshot and volumeName must be set",
    );
    checks.name(snapshot_name.as_ref(), "spec.source.snapshotName");
    checks.name(volume_name.as_ref(), "spec.source.volumeName");
    if let Some(GroupSnapshotMember { name, member, .. }) = group_snapshot {
        checks.name(Some(name), "spec.source.groupSnapshot.name");
        checks.name(Some(member), "spec.source.groupSnapshot.member");
    }
}

fn check_mount(checks: &mut Checks, mount: &VolumeMount) {
    let path = &mount.path;
    let parts = || path.split('/').skip(1);
    checks.that(
        path.starts_with('/')
            && path.len() <= 4095
            && parts().all(|part| !part.is_empty())
            && !path.contains('\0'),
        "spec.mount.path",
        "must be an absolute path without empty components, such as /srv/data",
    );
    checks.that(
        !parts().any(|part| part == "." || part == ".."),
        "spec.mount.path",
        "must not have a component '.' or '..'",
    );
    checks.that(
        mount.options.len() <= 32,
        "spec.mount.options",
        "must have at most 32 entries",
    );
    checks.that(
        mount.options.iter().all(|option| option.len() <= 256),
        "spec.mount.options",
        "must have entries of at most 256 characters",
    );
}

/// Problems of the spec of a snapshot.
pub fn snapshot(spec: &SnapshotSpec) -> Vec<FieldError> {
    let mut checks = Checks::default();
    checks.name(spec.node_name.as_ref(), "spec.nodeName");
    let source = &spec.source;
    checks.that(
        source.volume_name.is_some() != source.persistent_volume_claim_name.is_some(),
        "spec.source",
        "exactly one of volumeName and persistentVolumeClaimName must be set",
    );
    checks.name(source.volume_name.as_ref(), "spec.source.volumeName");
    checks.name(
        source.persistent_volume_claim_name.as_ref(),
        "spec.source.persistentVolumeClaimName",
    );
    checks.parameters(&spec.parameters);
    checks.0
}

/// Problems of the spec of a group.
pub fn group(spec: &VolumeGroupSpec) -> Vec<FieldError> {
    let mut checks = Checks::default();
    checks.name(spec.node_name.as_ref(), "spec.nodeName");
    checks.that(
        spec.members.is_some() != spec.selector.is_some(),
        "spec",
        "exactly one of members and selector must be set",
    );
    if let Some(selector) = &spec.selector {
        check_selector(&mut checks, selector);
    }
    let members = spec.members.as_deref().unwrap_or_default();
    checks.that(
        members.len() <= 128,
        "spec.members",
        "must have at most 128 entries",
    );
    for (index, GroupMember { name, .. }) in members.iter().enumerate() {
        checks.name(Some(name), &format!("spec.members.{index}.name"));
        checks.that(
            !members
                .iter()
                .take(index)
                .any(|other| Some(other) == members.get(index)),
            &format!("spec.members.{index}"),
            format!("{name} is listed twice"),
        );
    }
    checks.parameters(&spec.parameters);
    checks.0
}

fn check_selector(checks: &mut Checks, selector: &Selector) {
    for (field, valid) in selector.problems() {
        checks.that(false, &format!("spec.selector.{field}"), valid);
    }
}

/// Problems of the spec of a group snapshot.
pub fn group_snapshot(spec: &GroupSnapshotSpec) -> Vec<FieldError> {
    let mut checks = Checks::default();
    checks.name(spec.node_name.as_ref(), "spec.nodeName");
    checks.name(Some(&spec.group_name), "spec.groupName");
    checks.parameters(&spec.parameters);
    checks.0
}

/// Problems of the name and the spec of a schedule.
pub fn schedule(name: &str, spec: &SnapshotScheduleSpec) -> Vec<FieldError> {
    let mut checks = Checks::default();
    checks.that(
        name.len() <= 63,
        "metadata.name",
        "must have at most 63 characters, because it is a label of the snapshots",
    );
    checks.name(spec.node_name.as_ref(), "spec.nodeName");
    check_target(&mut checks, &spec.target);
    if let Err(error) = spec.schedule.parse::<Cron>() {
        checks.that(false, "spec.schedule", error.to_string());
    }
    if cron::time_zone(&spec.time_zone).is_none() {
        let near = cron::nearest_time_zone(&spec.time_zone);
        let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
        let message = format!(
            "{:?} is not a time zone of the IANA database, such as UTC or Europe/Berlin{hint}",
            spec.time_zone
        );
        checks.that(false, "spec.timeZone", message);
    }
    checks.that(
        spec.jitter_seconds <= 86_400,
        "spec.jitterSeconds",
        "must be 0 to 86400",
    );
    checks.that(
        (10..=31_536_000).contains(&spec.starting_deadline_seconds),
        "spec.startingDeadlineSeconds",
        "must be 10 to 31536000",
    );
    if let Some(retention) = &spec.retention {
        check_retention(&mut checks, retention);
    }
    checks.0
}

fn check_target(checks: &mut Checks, target: &ScheduleTarget) {
    let named = [
        ("groupName", &target.group_name),
        ("volumeName", &target.volume_name),
        (
            "persistentVolumeClaimName",
            &target.persistent_volume_claim_name,
        ),
    ];
    checks.that(
        named.iter().filter(|(_, name)| name.is_some()).count() == 1,
        "spec.target",
        "exactly one of groupName, volumeName and persistentVolumeClaimName must be set",
    );
    for (field, name) in named {
        checks.name(name.as_ref(), &format!("spec.target.{field}"));
    }
}

fn check_retention(checks: &mut Checks, retention: &Retention) {
    checks.that(
        (1..=1000).contains(&retention.keep_last),
        "spec.retention.keepLast",
        "must be 1 to 1000",
    );
    for (field, count) in [
        ("hourly", retention.hourly),
        ("daily", retention.daily),
        ("weekly", retention.weekly),
        ("monthly", retention.monthly),
        ("yearly", retention.yearly),
    ] {
        let field = format!("spec.retention.{field}");
        checks.that(count <= 1000, &field, "must be 0 to 1000");
    }
}

/// Violations of immutability between two specs of a schedule.
pub fn schedule_update(old: &SnapshotScheduleSpec, new: &SnapshotScheduleSpec) -> Vec<FieldError> {
    let mut checks = Checks::default();
    checks.node(old.node_name.as_ref(), new.node_name.as_ref());
    checks.that(old.target == new.target, "spec.target", "cannot be changed");
    checks.0
}

/// Violations of immutability between two specs of a group.
pub fn group_update(old: &VolumeGroupSpec, new: &VolumeGroupSpec) -> Vec<FieldError> {
    let mut checks = Checks::default();
    checks.node(old.node_name.as_ref(), new.node_name.as_ref());
    checks.that(
        old.parameters == new.parameters,
        "spec.parameters",
        "cannot be changed",
    );
    checks.0
}

/// Violations of immutability between two specs of a group snapshot.
pub fn group_snapshot_update(old: &GroupSnapshotSpec, new: &GroupSnapshotSpec) -> Vec<FieldError> {
    let mut checks = Checks::default();
    checks.node(old.node_name.as_ref(), new.node_name.as_ref());
    checks.that(
        old.group_name == new.group_name,
        "spec.groupName",
        "cannot be changed",
    );
    checks.0
}

/// Violations of immutability between two specs of a volume.
pub fn volume_update(old: &VolumeSpec, new: &VolumeSpec) -> Vec<FieldError> {
    let mut checks = Checks::default();
    checks.node(old.node_name.as_ref(), new.node_name.as_ref());
    checks.that(
        is_kept(old.device_class.as_ref(), new.device_class.as_ref()),
        "spec.deviceClass",
        "cannot be changed",
    );
    checks.that(
        old.volume_mode == new.volume_mode,
        "spec.volumeMode",
        "cannot be changed",
    );
    checks.that(
        is_kept(old.fs_type.as_ref(), new.fs_type.as_ref()),
        "spec.fsType",
        "cannot be changed",
    );
    checks.that(
        old.source == new.source,
        "spec.source",
        "cannot be changed, added or removed",
    );
    checks.that(
        old.parameters == new.parameters,
        "spec.parameters",
        "cannot be changed",
    );
    let bytes = |quantity: &Quantity| quantity.bytes().unwrap_or(0);
    checks.that(
        bytes(&new.capacity) >= bytes(&old.capacity),
        "spec.capacity",
        format!(
            "{} < {}: capacity can only grow",
            new.capacity, old.capacity
        ),
    );
    checks.0
}

/// Violations of immutability between two specs of a snapshot.
pub fn snapshot_update(old: &SnapshotSpec, new: &SnapshotSpec) -> Vec<FieldError> {
    let mut checks = Checks::default();
    checks.node(old.node_name.as_ref(), new.node_name.as_ref());
    checks.that(old.source == new.source, "spec.source", "cannot be changed");
    checks.0
}
/// Returns true if a field is unchanged. A field that was omitted before may be set: the agent checks it against the
/// volume.
fn is_kept<T: PartialEq>(old: Option<&T>, new: Option<&T>) -> bool {
    old.is_none() || new.is_none() || old == new
}
