//! Kind `VolumeGroup`.
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
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

use crate::{
    deletion_policy::DeletionPolicy,
    names::MOST_MEMBERS,
    selector::Selector,
    status::{LastOperation, conditions, unobserved},
};

/// A set of volumes that are snapshotted together.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "drumlin.dev",
    version = "v1alpha1",
    kind = "VolumeGroup",
    plural = "volumegroups",
    shortname = "dvg",
    category = "drumlin",
    namespaced,
    derive = "PartialEq",
    status = "VolumeGroupStatus",
    selectable = ".spec.nodeName",
    doc = "A set of volumes that are snapshotted together.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Members", type_ = "integer", json_path = ".status.memberCount"),
    printcolumn(name = "Want", type_ = "integer", json_path = ".status.desiredCount"),
    printcolumn(
        name = "LastSnapshot",
        type_ = "date",
        json_path = ".status.lastSnapshotTime"
    ),
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
        name = "Handle",
        type_ = "string",
        json_path = ".status.groupHandle",
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
    expecting = "a map with members or selector"
)]
#[x_kube(
    validation = ("!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)", "nodeName cannot be changed once it is set"),
    validation = ("has(self.members) != has(self.selector)", "exactly one of members and selector must be set")
)]
pub struct VolumeGroupSpec {
    /// Node of the volumes. When omitted, the node of the first member is used. Immutable once set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// Members by name. Set either this or `selector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "members")]
    pub members: Option<Vec<GroupMember>>,
    /// Members by label: volumes and claims of this namespace on the node of the group, at most 1,024. An empty selector
    /// selects all of them. Set either this or `members`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Minimum number of members: no group snapshot is taken while the group has fewer. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(max = 4_294_967_295_u32))]
    pub min_members: u32,
    /// Further parameters of the create call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = ("self == oldSelf", "parameters cannot be changed"))]
    pub parameters: BTreeMap<String, String>,
    /// What happens to the group when the object is deleted: `Delete` (the default) deletes it, `Retain` keeps it. The member
    /// volumes are kept in both cases.
    #[serde(default = "delete")]
    pub deletion_policy: DeletionPolicy,
}

/// Kind of a group member: Volume or `PersistentVolumeClaim`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum MemberKind {
    /// A Volume.
    #[default]
    Volume,
    /// A `PersistentVolumeClaim`.
    PersistentVolumeClaim,
}

impl fmt::Display for MemberKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Volume => "Volume",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
        })
    }
}

/// A member of a group, by name.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a map such as {kind: Volume, name: data}"
)]
pub struct GroupMember {
    /// Kind of the member.
    pub kind: MemberKind,
    /// Name of the member, in the namespace of the group.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// The schema of the members: a list that is merged by kind and name.
fn members(generator: &mut SchemaGenerator) -> Schema {
    by_kind_and_name(&generator.subschema_for::<GroupMember>(), 128)
}

fn by_kind_and_name(items: &Schema, most: usize) -> Schema {
    json_schema!({
        "type": "array",
        "items": items,
        "maxItems": most,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["kind", "name"],
    })
}

/// Observed state of a group member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Kind of the member.
    pub kind: String,
    /// Name of the member; empty when no object on this node corresponds to it.
    pub name: String,
    /// CSI `volume_id` of the member, once it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// State of the member: `Joined`, `Pending`, `NotFound`, `OtherNode`, `Conflict` or `Foreign`.
    pub state: String,
    /// Explanation of the state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A claim that a manifest selects, and its volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// Kind of the candidate.
    pub kind: String,
    /// Name of the candidate.
    pub name: String,
    /// CSI `volume_id` of its volume, once it is bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// Node of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

/// The schema of the candidates: a list that is merged by kind and name. It has room for one entry more than a group can
/// have, which shows that there are too many.
pub(crate) fn candidates(generator: &mut SchemaGenerator) -> Schema {
    by_kind_and_name(&generator.subschema_for::<Candidate>(), MOST_MEMBERS + 1)
}

/// Observed state of a `VolumeGroup`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupStatus {
    /// Generation of the spec that this status describes; -1 before the first reconciliation.
    #[serde(default = "unobserved")]
    pub observed_generation: i64,
    /// Conditions: Ready always; Reconciling, Stalled and others only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Name of the group in calls to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_name: Option<String>,
    /// The last CSI call made for this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// CSI-addons `volume_group_id` of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_handle: Option<String>,
    /// Number of volumes that have joined the group.
    #[serde(default)]
    pub member_count: u32,
    /// Number of volumes that should be in the group.
    #[serde(default)]
    pub desired_count: u32,
    /// State of each member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberStatus>,
    /// Time of the last snapshot of the group, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_snapshot_time: Option<String>,
    /// The claims that the members or the selector resolve to; written only by the controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "candidates")]
    pub candidates: Vec<Candidate>,
}

impl Default for VolumeGroupStatus {
    fn default() -> Self {
        Self {
            observed_generation: unobserved(),
            conditions: Vec::new(),
            csi_name: None,
            last_operation: None,
            group_handle: None,
            member_count: 0,
            desired_count: 0,
            members: Vec::new(),
            last_snapshot_time: None,
            candidates: Vec::new(),
        }
    }
}

fn one() -> u32 {
    1
}

fn delete() -> DeletionPolicy {
    DeletionPolicy::Delete
}
