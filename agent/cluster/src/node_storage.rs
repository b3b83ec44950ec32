//! Kind `NodeStorage`: the device classes of a node, as its agent reports them.
#![expect(
    clippy::duplicated_attributes,
    reason = "every column of a table has its own path and type"
)]

use std::collections::BTreeMap;

use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The storage of a node; its name is that of the node.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "drumlin.dev",
    version = "v1alpha1",
    kind = "NodeStorage",
    plural = "nodestorages",
    shortname = "dns",
    category = "drumlin",
    derive = "PartialEq",
    status = "NodeStorageStatus",
    doc = "The device classes of a node, as its agent reports them. Made by drumlin-controller; outlives its node.",
    printcolumn(
        name = "Class",
        type_ = "string",
        json_path = ".status.classes[*].name"
    ),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.classes[*].size"),
    printcolumn(
        name = "Promised",
        type_ = "string",
        json_path = ".status.classes[*].promised"
    ),
    printcolumn(
        name = "Available",
        type_ = "string",
        json_path = ".status.classes[*].available"
    ),
    printcolumn(
        name = "Fill",
        type_ = "string",
        json_path = ".status.classes[*].dataPercent"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.classes[*].ready"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.classes[*].message"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NodeStorageSpec {}

/// Labels of a node.
pub type Labels = BTreeMap<String, String>;

/// State of the storage of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStorageStatus {
    /// Version of the agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub agent_version: String,
    /// The device classes that the configuration gives to this node, the default one first. Retired classes, in which
    /// nothing new is created, come last, and are not ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub classes: Vec<StorageClassState>,
    /// The labels of the Node, by which the classes of the configuration select their nodes; written only by the
    /// controller, because agents may not read Nodes. Absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = NODE_LABELS, "x-kubernetes-map-type" = "atomic"))]
    pub node_labels: Option<Labels>,
    /// Volumes without a PersistentVolume; written only by the controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub unclaimed: Vec<UnclaimedVolume>,
}

/// State of a device class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageClassState {
    /// Its name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// True for the class of volumes whose parameters name none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// `directory`, `thin` or `thick`.
    #[schemars(length(max = 16))]
    pub kind: String,
    /// Size, in bytes.
    pub size: i64,
    /// Sum of the sizes promised to volumes, in bytes.
    pub promised: i64,
    /// Capacity available to new volumes, in bytes.
    pub available: i64,
    /// Size of the largest volume that can be created, in bytes.
    pub maximum_volume: i64,
    /// Fill of the data, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_percent: Option<i32>,
    /// Fill of the metadata of a thin pool, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_percent: Option<i32>,
    /// Number of volumes.
    pub volumes: i64,
    /// True if volumes can be created and used.
    pub ready: bool,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// A volume without a PersistentVolume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnclaimedVolume {
    /// Its handle.
    #[schemars(length(max = 128))]
    pub volume_handle: String,
    /// Size, in bytes.
    pub capacity: i64,
    /// Namespace and name of the claim that it was created for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub claim: String,
}

/// Maximum number of labels.
pub(crate) const NODE_LABELS: usize = 512;

impl NodeStorage {
    /// The classes, if the agent has reported them.
    pub(crate) fn reported(&self) -> Option<&[StorageClassState]> {
        let status = self.status.as_ref();
        let status = status.filter(|status| !status.agent_version.is_empty());
        status.map(|status| &*status.classes)
    }

    /// The class `name`, or the default one when no name is given; none if the node does not have it.
    pub(crate) fn class(&self, name: Option<&str>) -> Option<&StorageClassState> {
        let mut classes = self.status.as_ref()?.classes.iter();
        match name {
            Some(name) => classes.find(|class| class.name == name),
            None => classes.find(|class| class.default),
        }
    }
}

/// The definition of the kind.
pub(crate) fn definition() -> Value {
    drumlin_crd::tidied(&NodeStorage::crd())
}
