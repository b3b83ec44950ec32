//! Kind `Volume`.
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
    group::MemberKind,
    quantity::Quantity,
    status::{LastOperation, conditions, unobserved},
};

/// A volume on one node, mounted where the manifest says.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "drumlin.dev",
    version = "v1alpha1",
    kind = "Volume",
    plural = "volumes",
    shortname = "dv",
    category = "drumlin",
    namespaced,
    derive = "PartialEq",
    status = "VolumeStatus",
    selectable = ".spec.nodeName",
    doc = "A volume on one node, mounted where the manifest says.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Capacity", type_ = "string", json_path = ".status.capacity"),
    printcolumn(name = "Mount", type_ = "string", json_path = ".status.mountPath"),
    printcolumn(name = "Group", type_ = "string", json_path = ".status.groupName"),
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
        name = "Class",
        type_ = "string",
        json_path = ".status.deviceClass",
        priority = 1
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
        json_path = ".status.volumeHandle",
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
#[x_kube(validation = ("has(self.source) == has(oldSelf.source)", "source cannot be added or removed"))]
pub struct VolumeSpec {
    /// The node that has the volume. When left out it is this host, or in a cluster the node of its source; once set it
    /// stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// The device class of the agent that it is made in; when left out that of its source, or the agent's default. The
    /// status says which it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    #[x_kube(validation = ("self == oldSelf", "deviceClass cannot be changed"))]
    pub device_class: Option<String>,
    /// How large it shall be at least, such as `10Gi`. It can grow, and never shrinks.
    #[x_kube(validation = ("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))", "capacity must be a quantity greater than 0, such as 10Gi"))]
    #[x_kube(validation = ("!isQuantity(self) || !isQuantity(oldSelf) || quantity(self).compareTo(quantity(oldSelf)) >= 0", "capacity can only grow"))]
    pub capacity: Quantity,
    /// A mounted file system, which it is when left out, or a raw block device.
    #[serde(default)]
    #[x_kube(validation = ("self == oldSelf", "volumeMode cannot be changed"))]
    pub volume_mode: VolumeMode,
    /// Its file system; when left out that of its source, or the one that its class gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "fsType cannot be changed"))]
    pub fs_type: Option<FsType>,
    /// What it is made from, of this namespace: a snapshot, a member of a group's snapshot or another volume; blank when left
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "source cannot be changed"))]
    pub source: Option<VolumeSource>,
    /// Where it is mounted on the host, nowhere when left out; in a cluster only by agents with `--allow-host-mounts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<VolumeMount>,
    /// What else the agent is told when it makes the volume, as a storage class would.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = ("self == oldSelf", "parameters cannot be changed"))]
    pub parameters: BTreeMap<String, String>,
    /// What becomes of the volume when the object is destroyed: `Retain`, which it is when left out, keeps its bytes, to be
    /// found again by an object of the same name.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// A mounted file system, or a raw block device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeMode {
    /// A mounted file system.
    #[default]
    Filesystem,
    /// A raw block device.
    Block,
}

/// The file system that a volume is formatted with; when left out that of its source, or the one that its class gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// ext4.
    Ext4,
    /// xfs.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl FsType {
    /// The kernel's name of it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

/// What becomes of the storage when its object is destroyed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// It stays, to be found again by the same name.
    #[default]
    Retain,
    /// It is deleted.
    Delete,
}

/// What a volume is made from: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("[has(self.snapshotName), has(self.groupSnapshot), has(self.volumeName)].exists_one(x, x)", "exactly one of snapshotName, groupSnapshot and volumeName must be set"))]
pub struct VolumeSource {
    /// A Snapshot of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub snapshot_name: Option<String>,
    /// A member of a `GroupSnapshot` of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_snapshot: Option<GroupSnapshotMember>,
    /// Another Volume of this namespace, as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub volume_name: Option<String>,
}

/// One member of a group snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GroupSnapshotMember {
    /// The `GroupSnapshot`.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The name of the member in its group.
    #[schemars(length(min = 1, max = 253))]
    pub member: String,
    /// What the member is; only needed where a volume and a claim in the group have one name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_kind: Option<MemberKind>,
}

/// Where and how a volume is mounted on its host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeMount {
    /// The directory, or for a raw volume the file, that it appears at; made when it is not there.
    #[schemars(length(min = 1, max = 4095), regex(pattern = "^(/[^/\\x00]+)+$"))]
    #[x_kube(validation = ("!self.split('/').exists(c, c == '..' || c == '.')", "path must not have a part '.' or '..'"))]
    pub path: String,
    /// Mount options, such as `noatime`; in a cluster `nosuid` and `nodev` hold too, unless the agent has `--mount-allow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 256)))]
    pub options: Vec<String>,
    /// Whether it can only be read there; it can be written when left out.
    #[serde(default)]
    pub read_only: bool,
}

/// What has become of a Volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// The generation that this status is about; -1 before anybody has looked.
    #[serde(default = "unobserved")]
    pub observed_generation: i64,
    /// Ready, and while they hold Reconciling, Stalled and others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The name that the agent knows the volume by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_name: Option<String>,
    /// The last call that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// The `volume_id`: `<node>/<class>/<key>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// The device class that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_class: Option<String>,
    /// How large it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,
    /// Where it is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_path: Option<String>,
    /// The group that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_name: Option<String>,
}

impl Default for VolumeStatus {
    fn default() -> Self {
        Self {
            observed_generation: unobserved(),
            conditions: Vec::new(),
            csi_name: None,
            last_operation: None,
            volume_handle: None,
            device_class: None,
            capacity: None,
            mount_path: None,
            group_name: None,
        }
    }
}
