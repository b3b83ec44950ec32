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
    deletion_policy::VolumeDeletionPolicy,
    group::MemberKind,
    quantity::Quantity,
    status::{LastOperation, conditions, unobserved},
};

/// A volume on one node, mounted at the path given in the manifest.
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
    doc = "A volume on one node, mounted at the path given in the manifest.",
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
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a map such as {capacity: 10Gi}"
)]
#[x_kube(validation = ("!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)", "nodeName cannot be changed once it is set"))]
#[x_kube(validation = ("has(self.source) == has(oldSelf.source)", "source cannot be added or removed"))]
pub struct VolumeSpec {
    /// Node of the volume. Default: this host, or in a cluster the node of the source. Immutable once set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// Device class in which the volume is created. Default: the class of the source, or the default class of the agent;
    /// `status.deviceClass` shows the class in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    #[x_kube(validation = ("self == oldSelf", "deviceClass cannot be changed"))]
    pub device_class: Option<String>,
    /// Minimum size of the volume, such as `10Gi`. It can be increased but not decreased.
    #[x_kube(validation = ("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))", "capacity must be a quantity greater than 0, such as 10Gi"))]
    #[x_kube(validation = ("!isQuantity(self) || !isQuantity(oldSelf) || quantity(self).compareTo(quantity(oldSelf)) >= 0", "capacity can only grow"))]
    pub capacity: Quantity,
    /// Filesystem (the default) for a mounted file system, Block for a raw block device.
    #[serde(default)]
    #[x_kube(validation = ("self == oldSelf", "volumeMode cannot be changed"))]
    pub volume_mode: VolumeMode,
    /// File system of the volume. Default: the file system of the source, or the one of the device class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "fsType cannot be changed"))]
    pub fs_type: Option<FsType>,
    /// Object of this namespace whose contents the volume gets: a snapshot, a member of a group snapshot, or another volume.
    /// Without a source the volume is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "source cannot be changed"))]
    pub source: Option<VolumeSource>,
    /// Mount on the host. Default: the volume is not mounted. In a cluster only agents with `--allow-host-mounts` mount volumes
    /// on their host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<VolumeMount>,
    /// Further parameters of the create call, as in a storage class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = ("self == oldSelf", "parameters cannot be changed"))]
    pub parameters: BTreeMap<String, String>,
    /// What happens to the volume when the object is deleted: `Retain` (the default) keeps the volume and its data, and a new
    /// object of the same name gets it back; `Delete` deletes it; `Trash` moves it to the trash of its device class, from
    /// which it can be undeleted for a while.
    #[serde(default)]
    pub deletion_policy: VolumeDeletionPolicy,
}

/// Mode of a volume: a mounted file system or a raw block device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeMode {
    /// A mounted file system.
    #[default]
    Filesystem,
    /// A raw block device.
    Block,
}

/// File system that a volume is formatted with. Default: the file system of the source, or the one of the device class.
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
    /// The name that the kernel uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

/// Source of the contents of a volume: set exactly one field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a map such as {snapshotName: data-1}"
)]
#[x_kube(validation = ("[has(self.snapshotName), has(self.groupSnapshot), has(self.volumeName)].exists_one(x, x)", "exactly one of snapshotName, groupSnapshot and volumeName must be set"))]
pub struct VolumeSource {
    /// A Snapshot of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub snapshot_name: Option<String>,
    /// A member of a `GroupSnapshot` of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_snapshot: Option<GroupSnapshotMember>,
    /// Another Volume of this namespace; its contents at the time of the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub volume_name: Option<String>,
}

/// One member of a group snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a map such as {name: db-1, member: data}"
)]
pub struct GroupSnapshotMember {
    /// The `GroupSnapshot`.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The name of the member in its group.
    #[schemars(length(min = 1, max = 253))]
    pub member: String,
    /// Kind of the member; only needed when a volume and a claim of the group have the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_kind: Option<MemberKind>,
}

/// Mount of a volume on its host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a map such as {path: /srv/data}"
)]
pub struct VolumeMount {
    /// Directory on which the volume is mounted, or for a raw volume the file that becomes its device node; created if missing.
    #[schemars(length(min = 1, max = 4095), regex(pattern = "^(/[^/\\x00]+)+$"))]
    #[x_kube(validation = ("!self.split('/').exists(c, c == '..' || c == '.')", "path must not have a component '.' or '..'"))]
    pub path: String,
    /// Mount options, such as `noatime`. In a cluster `nosuid` and `nodev` are added unless `--mount-allow` of the agent
    /// permits otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 256)))]
    pub options: Vec<String>,
    /// True for a read-only mount. Default: false.
    #[serde(default)]
    pub read_only: bool,
}

/// Observed state of a Volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// Generation of the spec that this status describes; -1 before the first reconciliation.
    #[serde(default = "unobserved")]
    pub observed_generation: i64,
    /// Conditions: Ready always; Reconciling, Stalled and others only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Name of the volume in calls to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_name: Option<String>,
    /// The last CSI call made for this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// The `volume_id`: `<node>/<class>/<key>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_handle: Option<String>,
    /// The device class that the volume is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_class: Option<String>,
    /// Current size of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,
    /// Path at which the volume is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_path: Option<String>,
    /// The group that the volume is a member of.
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
