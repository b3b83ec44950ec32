//! Kind `GroupSnapshot`.
#![expect(
    clippy::duplicated_attributes,
    reason = "every column of a table has its own path and type"
)]
#![expect(
    unreachable_pub,
    reason = "kube's derive repeats the types in a place of its own"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{
    deletion_policy::DeletionPolicy,
    quantity::Quantity,
    status::{LastOperation, conditions, unobserved},
};

/// A point-in-time copy of all volumes of a group.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "drumlin.dev",
    version = "v1alpha1",
    kind = "GroupSnapshot",
    plural = "groupsnapshots",
    shortname = "dgsnap",
    category = "drumlin",
    namespaced,
    derive = "PartialEq",
    status = "GroupSnapshotStatus",
    selectable = ".spec.nodeName",
    doc = "A point-in-time copy of all volumes of a group.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Group", type_ = "string", json_path = ".spec.groupName"),
    printcolumn(name = "Members", type_ = "integer", json_path = ".status.memberCount"),
    printcolumn(name = "Taken", type_ = "date", json_path = ".status.creationTime"),
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
        name = "Policy",
        type_ = "string",
        json_path = ".spec.deletionPolicy",
        priority = 1
    ),
    printcolumn(
        name = "Handle",
        type_ = "string",
        json_path = ".status.groupSnapshotHandle",
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
    expecting = "a map such as {groupName: db}"
)]
#[x_kube(validation = ("!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)", "nodeName cannot be changed once it is set"))]
pub struct GroupSnapshotSpec {
    /// Node of the group. When omitted, the agent of that node sets it. Immutable once set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// Name of the `VolumeGroup` of this namespace whose volumes are snapshotted.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("self == oldSelf", "groupName cannot be changed"))]
    pub group_name: String,
    /// Further parameters of the create call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub parameters: BTreeMap<String, String>,
    /// What happens to the group snapshot when the object is deleted: `Delete` (the default) deletes it, `Retain` keeps it.
    #[serde(default = "delete")]
    pub deletion_policy: DeletionPolicy,
}

/// One member of a group snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberSnapshot {
    /// Kind of the source.
    pub kind: String,
    /// Name of the source; empty when no object on this node corresponded to it.
    pub name: String,
    /// CSI `volume_id` of the source volume, recorded before the snapshot is requested.
    pub volume_handle: String,
    /// CSI `snapshot_id` of the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// Minimum size of a volume created from this snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<Quantity>,
    /// True if volumes can be created from this snapshot.
    #[serde(default)]
    pub ready_to_use: bool,
}

/// Observed state of a `GroupSnapshot`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupSnapshotStatus {
    /// Generation of the spec that this status describes; -1 before the first reconciliation.
    #[serde(default = "unobserved")]
    pub observed_generation: i64,
    /// Conditions: Ready always; Reconciling, Stalled and others only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Name of the group snapshot in calls to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_name: Option<String>,
    /// The last CSI call made for this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// CSI `group_snapshot_id` of the group snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_snapshot_handle: Option<String>,
    /// Point in time of the group snapshot, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<String>,
    /// True if volumes can be created from all members.
    #[serde(default)]
    pub ready_to_use: bool,
    /// Number of members.
    #[serde(default)]
    pub member_count: u32,
    /// The members; the list is recorded before the snapshot is requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberSnapshot>,
}

impl Default for GroupSnapshotStatus {
    fn default() -> Self {
        Self {
            observed_generation: unobserved(),
            conditions: Vec::new(),
            csi_name: None,
            last_operation: None,
            group_snapshot_handle: None,
            creation_time: None,
            ready_to_use: false,
            member_count: 0,
            members: Vec::new(),
        }
    }
}

fn delete() -> DeletionPolicy {
    DeletionPolicy::Delete
}
