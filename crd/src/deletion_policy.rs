//! The deletion policy, which all kinds have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What happens to the storage when its object is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// The storage and its data are kept; a new object of the same name gets them back.
    #[default]
    Retain,
    /// The storage is deleted.
    Delete,
}
