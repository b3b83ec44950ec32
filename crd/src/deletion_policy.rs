//! The deletion policies, which all kinds have.

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

/// What happens to a volume when its object is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeDeletionPolicy {
    /// The volume and its data are kept; a new object of the same name gets them back.
    #[default]
    Retain,
    /// The volume is deleted; if its device class has a trash, it goes there.
    Delete,
    /// The volume goes to the trash, and is deleted later.
    Trash,
}

impl VolumeDeletionPolicy {
    /// Returns true unless the storage is kept.
    pub fn deletes(self) -> bool {
        self != Self::Retain
    }

    /// The policy as spelled in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retain => "Retain",
            Self::Delete => "Delete",
            Self::Trash => "Trash",
        }
    }
}

impl From<DeletionPolicy> for VolumeDeletionPolicy {
    fn from(policy: DeletionPolicy) -> Self {
        match policy {
            DeletionPolicy::Retain => Self::Retain,
            DeletionPolicy::Delete => Self::Delete,
        }
    }
}
