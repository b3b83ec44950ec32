//! Kind `SnapshotSchedule`.
#![expect(
    clippy::struct_field_names,
    reason = "the fields of a target are those of the manifest"
)]
#![expect(
    unreachable_pub,
    reason = "kube's derive repeats the types in a place of its own"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    cron,
    group::{Candidate, candidates},
    status::{LastOperation, conditions, unobserved},
};

/// Snapshots of a volume or of a group at regular times, of which as many are kept as it says.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "drumlin.dev",
    version = "v1alpha1",
    kind = "SnapshotSchedule",
    plural = "snapshotschedules",
    shortname = "dsched",
    category = "drumlin",
    namespaced,
    derive = "PartialEq",
    status = "SnapshotScheduleStatus",
    selectable = ".spec.nodeName",
    doc = "Takes snapshots of a volume or of a group at regular times, and deletes old ones.",
    validation = ("self.metadata.name.size() <= 63", "metadata.name must have at most 63 characters, because it is a label of the snapshots"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule"),
    printcolumn(name = "Suspend", type_ = "boolean", json_path = ".spec.suspend"),
    printcolumn(name = "Kept", type_ = "integer", json_path = ".status.kept"),
    printcolumn(
        name = "Last",
        type_ = "date",
        json_path = ".status.lastSuccessTime"
    ),
    printcolumn(name = "Next", type_ = "string", json_path = ".status.nextTime"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Zone",
        type_ = "string",
        json_path = ".spec.timeZone",
        priority = 1
    ),
    printcolumn(
        name = "Group",
        type_ = "string",
        json_path = ".spec.target.groupName",
        priority = 1
    ),
    printcolumn(
        name = "Volume",
        type_ = "string",
        json_path = ".spec.target.volumeName",
        priority = 1
    ),
    printcolumn(
        name = "Missed",
        type_ = "integer",
        json_path = ".status.missed",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    )
)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a map with target and schedule"
)]
#[x_kube(validation = ("!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)", "nodeName cannot be changed once it is set"))]
pub struct SnapshotScheduleSpec {
    /// Node of the target. When omitted, the agent of that node sets it. Immutable once set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// What is snapshotted.
    #[x_kube(validation = ("self == oldSelf", "target cannot be changed"))]
    pub target: ScheduleTarget,
    /// Times of the snapshots: five cron fields (minute, hour, day of month, month, day of week), or `@hourly`, `@daily`,
    /// `@weekly`, `@monthly` or `@yearly`.
    #[schemars(schema_with = "expression")]
    pub schedule: String,
    /// Time zone of the schedule, by its IANA name, such as `Europe/Berlin`.
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
    /// Maximum delay of a snapshot in seconds: each schedule has a fixed delay below it, so that not all schedules of a
    /// cluster run at the same time.
    #[serde(default = "jitter")]
    #[schemars(range(min = 0, max = 86_400))]
    pub jitter_seconds: u32,
    /// How many seconds late a snapshot may be taken, after the agent was away or could not take it; then it is missed.
    #[serde(default = "deadline")]
    #[schemars(range(min = 10, max = 31_536_000))]
    pub starting_deadline_seconds: u32,
    /// True to take no snapshots and to delete none.
    #[serde(default)]
    pub suspend: bool,
    /// Which snapshots are kept; all others are deleted. When omitted, all are kept. The newest is always kept. Another
    /// retention than before deletes nothing for 15 minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
}

/// Target of a schedule: set exactly one field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a map such as {volumeName: data}"
)]
#[x_kube(validation = ("[has(self.groupName), has(self.volumeName), has(self.persistentVolumeClaimName)].exists_one(x, x)", "exactly one of groupName, volumeName and persistentVolumeClaimName must be set"))]
pub struct ScheduleTarget {
    /// A `VolumeGroup` of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub group_name: Option<String>,
    /// A Volume of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub volume_name: Option<String>,
    /// A `PersistentVolumeClaim` of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub persistent_volume_claim_name: Option<String>,
}

/// Which snapshots are kept: those that any of these fields asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a map such as {keepLast: 24, daily: 7}"
)]
pub struct Retention {
    /// Number of newest snapshots that are kept.
    #[schemars(range(min = 1, max = 1000))]
    pub keep_last: u32,
    /// Number of hours of which the newest snapshot is kept; hours without a snapshot do not count.
    #[schemars(range(min = 0, max = 1000))]
    pub hourly: u32,
    /// Number of days of which the newest snapshot is kept, in the time zone of the schedule.
    #[schemars(range(min = 0, max = 1000))]
    pub daily: u32,
    /// Number of weeks, from Monday on, of which the newest snapshot is kept.
    #[schemars(range(min = 0, max = 1000))]
    pub weekly: u32,
    /// Number of months of which the newest snapshot is kept.
    #[schemars(range(min = 0, max = 1000))]
    pub monthly: u32,
    /// Number of years of which the newest snapshot is kept.
    #[schemars(range(min = 0, max = 1000))]
    pub yearly: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            keep_last: 1,
            hourly: 0,
            daily: 0,
            weekly: 0,
            monthly: 0,
            yearly: 0,
        }
    }
}

/// Observed state of a `SnapshotSchedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotScheduleStatus {
    /// Generation of the spec that this status describes; -1 before the first reconciliation.
    #[serde(default = "unobserved")]
    pub observed_generation: i64,
    /// Conditions: Ready always; Reconciling, Stalled and others only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Name of the resource in calls to the agent; a schedule has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_name: Option<String>,
    /// The last CSI call made for this object; a schedule makes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// Slots up to this one were served, missed or suspended, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<String>,
    /// Time at which the last snapshot was requested, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempt_time: Option<String>,
    /// Point in time of the last snapshot that became ready, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success_time: Option<String>,
    /// Name of the last snapshot that was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_snapshot_name: Option<String>,
    /// Time of the next snapshot, as RFC 3339; none while suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_time: Option<String>,
    /// Number of snapshots of this schedule that are ready.
    #[serde(default)]
    pub kept: u32,
    /// Number of slots without a snapshot: the agent was away, or could not take one in time.
    #[serde(default)]
    pub missed: u32,
    /// The claim that the target resolves to; written only by the controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "candidates")]
    pub candidates: Vec<Candidate>,
}

impl Default for SnapshotScheduleStatus {
    fn default() -> Self {
        Self {
            observed_generation: unobserved(),
            conditions: Vec::new(),
            csi_name: None,
            last_operation: None,
            last_schedule_time: None,
            last_attempt_time: None,
            last_success_time: None,
            last_snapshot_name: None,
            next_time: None,
            kept: 0,
            missed: 0,
            candidates: Vec::new(),
        }
    }
}

fn utc() -> String {
    "UTC".to_owned()
}

fn jitter() -> u32 {
    300
}

fn deadline() -> u32 {
    3600
}

/// The schema of a cron expression.
fn expression(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": cron::LONGEST,
        "pattern": cron::PATTERN,
    })
}
