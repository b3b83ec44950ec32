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
    quantity::Quantity,
    status::{LastOperation, conditions, unobserved},
    volume::DeletionPolicy,
};

/// One moment of all volumes of a group, kept.
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
    doc = "One moment of all volumes of a group, kept.",
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
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)", "nodeName cannot be changed once it is set"))]
pub struct GroupSnapshotSpec {
    /// The node that has the group; claimed by it when left out, and once set it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// The group of this namespace whose moment it is.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("self == oldSelf", "groupName cannot be changed"))]
    pub group_name: String,
    /// What else the agent is told when it takes the snapshot.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub parameters: BTreeMap<String, String>,
    /// What becomes of the snapshot when the object is destroyed: it goes too unless this is `Retain`.
    #[serde(default = "delete")]
    pub deletion_policy: DeletionPolicy,
}

/// One member of a group snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberSnapshot {
    /// What it is a snapshot of.
    pub kind: String,
    /// The name of that; empty when nothing here was called so.
    pub name: String,
    /// The `volume_id` of that, fixed before the snapshot is asked for.
    pub volume_handle: String,
    /// The `snapshot_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// How large a volume made from it must be at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<Quantity>,
    /// Whether volumes can be made from it.
    #[serde(default)]
    pub ready_to_use: bool,
}

/// What has become of a group snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupSnapshotStatus {
    /// The generation that this status is about; -1 before anybody has looked.
    #[serde(default = "unobserved")]
    pub observed_generation: i64,
    /// Ready, and while they hold Reconciling, Stalled and others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The name that the agent knows the group snapshot by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_name: Option<String>,
    /// The last call that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// The `group_snapshot_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_snapshot_handle: Option<String>,
    /// Its moment, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<String>,
    /// Whether volumes can be made from all members.
    #[serde(default)]
    pub ready_to_use: bool,
    /// So many members.
    #[serde(default)]
    pub member_count: u32,
    /// The members: the list is fixed before the snapshot is asked for.
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
