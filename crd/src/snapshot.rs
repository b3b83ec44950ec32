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
    group::{Candidate, candidates},
    quantity::Quantity,
    status::{LastOperation, conditions, unobserved},
    volume::DeletionPolicy,
};

/// One moment of a volume, kept.
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
    doc = "One moment of a volume, kept.",
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
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)", "nodeName cannot be changed once it is set"))]
pub struct SnapshotSpec {
    /// The node that has the volume; claimed by it when left out, and once set it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// What it is a snapshot of.
    #[x_kube(validation = ("self == oldSelf", "source cannot be changed"))]
    pub source: SnapshotSource,
    /// What else the agent is told when it makes the snapshot.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub parameters: BTreeMap<String, String>,
    /// What becomes of the snapshot when the object is destroyed: it goes too unless this is `Retain`.
    #[serde(default = "delete")]
    pub deletion_policy: DeletionPolicy,
}

/// What a snapshot is taken of: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("has(self.volumeName) != has(self.persistentVolumeClaimName)", "exactly one of volumeName and persistentVolumeClaimName must be set"))]
pub struct SnapshotSource {
    /// A Volume of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub volume_name: Option<String>,
    /// A claim of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub persistent_volume_claim_name: Option<String>,
}

/// What has become of a Snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The generation that this status is about; -1 before anybody has looked.
    #[serde(default = "unobserved")]
    pub observed_generation: i64,
    /// Ready, and while they hold Reconciling, Stalled and others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The name that the agent knows the snapshot by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_name: Option<String>,
    /// The last call that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// The `snapshot_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// The `volume_id` of the volume, fixed before the snapshot is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_volume_handle: Option<String>,
    /// Its moment, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<String>,
    /// Whether volumes can be made from it.
    #[serde(default)]
    pub ready_to_use: bool,
    /// How large a volume made from it must be at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<Quantity>,
    /// The claim that is meant, written by the controller alone.
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
