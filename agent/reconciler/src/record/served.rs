//! What an API server says of an object, beside its manifest.

use drumlin_crd::Candidate;
use serde::{Deserialize, Serialize};

/// Metadata of an API server object that manifest files do not have.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and any of them may hold"
)]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Served {
    /// The UID of the object; a recreated object has another one.
    pub(crate) uid: String,
    /// The UID of its namespace; a recreated namespace is another tenant.
    pub(crate) namespace_uid: String,
    /// True if the object has our finalizer.
    #[serde(default)]
    pub(crate) has_finalizer: bool,
    /// True if the object is being deleted.
    #[serde(default)]
    pub(crate) is_deleting: bool,
    /// True if the `CustomResourceDefinition` of its kind is being deleted, and not this object alone: then nothing is
    /// destroyed.
    #[serde(default)]
    pub(crate) is_kept: bool,
    /// True if an agent whose state is lost created resources for it: they are found by name.
    #[serde(default)]
    pub(crate) is_state_lost: bool,
    /// The `PersistentVolumeClaims` that it selects, as resolved by the controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) candidates: Vec<Candidate>,
}
