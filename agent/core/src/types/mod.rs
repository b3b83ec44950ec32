//! Validated values: checked once when a request arrives, never again after that.

mod access;
mod id;
mod name;
mod path;
mod size;
mod snapshot_uuid;
mod topology;

pub use access::{AccessMode, AccessType, Capability};
pub(crate) use id::HANDLE_BYTES;
pub use id::{Handle, ImageId, ImageKind, Key, Reference};
pub use name::{ClassName, Name, NodeName};
pub use path::{AbsolutePath, RootPath};
pub use size::{Size, SizeRange, SizeRules};
pub use snapshot_uuid::SnapshotUuid;
pub use topology::{Requirement, TOPOLOGY_KEY, Topology};

use std::collections::BTreeMap;

/// A map of strings, ordered by key.
pub type Map = BTreeMap<String, String>;
