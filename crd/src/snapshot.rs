//! Kind `Snapshot`.
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
    group::{Candidate, candidates},
    quantity::Quantity,
    status::{LastOperation, conditions, unobserved},
};

/// A point-in-time copy of a volume.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "drumlin.dev",
    version = "v1alpha1",
    kind = "Snapshot",
    plural = "snapshots",
    shortname = "dsnap",
    category = "drumlin",
    namespaced,
    derive = "PartialEq",
    status = "SnapshotStatus",
    selectable = ".spec.nodeName",
    doc = "A point-in-time copy of a volume.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(
        name = "Source",
        type_ = "string",
        json_path = ".spec.source.volumeName"
    ),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.restoreSize"),
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
        json_path = ".status.snapshotHandle",
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
    expecting = "a map such as {source: {volumeName: data}}"
)]
#[x_kube(validation = ("!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)", "nodeName cannot be changed once it is set"))]
pub struct SnapshotSpec {
    /// Node of the source volume. When omitted, the agent of that node sets it. Immutable once set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// Source of the snapshot.
    #[x_kube(validation = ("self == oldSelf", "source cannot be changed"))]
    pub source: SnapshotSource,
    /// Further parameters of the create call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub parameters: BTreeMap<String, String>,
    /// What happens to the snapshot when the object is deleted: `Delete` (the default) deletes it, `Retain` keeps it.
    #[serde(default = "delete")]
    pub deletion_policy: DeletionPolicy,
}

/// Source of a snapshot: set exactly one field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a map such as {volumeName: data}"
)]
#[x_kube(validation = ("has(self.volumeName) != has(self.persistentVolumeClaimName)", "exactly one of volumeName and persistentVolumeClaimName must be set"))]
pub struct SnapshotSource {
    /// A Volume of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub volume_name: Option<String>,
    /// A `PersistentVolumeClaim` of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub persistent_volume_claim_name: Option<String>,
}

/// Observed state of a Snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// Generation of the spec that this status describes; -1 before the first reconciliation.
    #[serde(default = "unobserved")]
    pub observed_generation: i64,
    /// Conditions: Ready always; Reconciling, Stalled and others only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Name of the snapshot in calls to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_name: Option<String>,
    /// The last CSI call made for this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// CSI `snapshot_id` of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// CSI `volume_id` of the source volume, recorded before the snapshot is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_volume_handle: Option<String>,
    /// Point in time of the snapshot, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<String>,
    /// True if volumes can be created from the snapshot.
    #[serde(default)]
    pub ready_to_use: bool,
    /// Minimum size of a volume created from the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<Quantity>,
    /// The claim that the source resolves to; written only by the controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "candidates")]
    pub candidates: Vec<Candidate>,
}

impl Default for SnapshotStatus {
    fn default() -> Self {
        Self {
            observed_generation: unobserved(),
            conditions: Vec::new(),
            csi_name: None,
            last_operation: None,
            snapshot_handle: None,
            source_volume_handle: None,
            creation_time: None,
            ready_to_use: false,
            restore_size: None,
            candidates: Vec::new(),
        }
    }
}

fn delete() -> DeletionPolicy {
    DeletionPolicy::Delete
}
