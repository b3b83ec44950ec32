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
    names::MOST_MEMBERS,
    selector::Selector,
    status::{LastOperation, conditions, unobserved},
    volume::DeletionPolicy,
};

/// Volumes that belong together.
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
    doc = "Volumes that belong together.",
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
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = ("!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)", "nodeName cannot be changed once it is set"),
    validation = ("has(self.members) != has(self.selector)", "exactly one of members and selector must be set")
)]
pub struct VolumeGroupSpec {
    /// The node that has the volumes; claimed from the first of them when left out, and once set it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// The members, by name: this or a selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "members")]
    pub members: Option<Vec<GroupMember>>,
    /// The members, by their labels: volumes and claims of this namespace on this node, at most 1,024. An empty one means all
    /// of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// No snapshot of the group is taken while it has fewer members than this; 1 when left out.
    #[serde(default = "one")]
    #[schemars(range(max = 4_294_967_295_u32))]
    pub min_members: u32,
    /// What else the agent is told when it makes the group.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = ("self == oldSelf", "parameters cannot be changed"))]
    pub parameters: BTreeMap<String, String>,
    /// What becomes of the group when the object is destroyed: it goes too unless this is `Retain`. Its members stay whatever
    /// this says.
    #[serde(default = "delete")]
    pub deletion_policy: DeletionPolicy,
}

/// What a member of a group is: a Volume, or a claim.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum MemberKind {
    /// A Volume.
    #[default]
    Volume,
    /// A claim.
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
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GroupMember {
    /// What it is.
    pub kind: MemberKind,
    /// Its name, in the namespace of the group.
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

/// What has become of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// What it is.
    pub kind: String,
    /// Its name; empty when nothing here is called so.
    pub name: String,
    /// Its `volume_id`, once it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// `Joined`, `Pending`, `NotFound`, `OtherNode`, `Conflict` or `Foreign`.
    pub state: String,
    /// Why it is so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A claim that a manifest means, and the volume behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// What it is.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its `volume_id`, once it is bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// The node that has the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

/// The schema of the candidates: a list that is merged by kind and name. One more than a group can have says that there are
/// too many.
pub(crate) fn candidates(generator: &mut SchemaGenerator) -> Schema {
    by_kind_and_name(&generator.subschema_for::<Candidate>(), MOST_MEMBERS + 1)
}

/// What has become of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupStatus {
    /// The generation that this status is about; -1 before anybody has looked.
    #[serde(default = "unobserved")]
    pub observed_generation: i64,
    /// Ready, and while they hold Reconciling, Stalled and others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The name that the agent knows the group by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_name: Option<String>,
    /// The last call that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// The `volume_group_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_handle: Option<String>,
    /// So many have joined.
    #[serde(default)]
    pub member_count: u32,
    /// So many shall.
    #[serde(default)]
    pub desired_count: u32,
    /// What has become of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberStatus>,
    /// When the last snapshot of it was taken, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_snapshot_time: Option<String>,
    /// The claims that are meant, written by the controller alone.
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
