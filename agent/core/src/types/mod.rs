//! Checked values: made once at the door, never checked again behind it.

mod access;
mod id;
mod name;
mod path;
mod size;
mod topology;

pub use access::{AccessMode, AccessType, Capability};
pub(crate) use id::HANDLE_BYTES;
pub use id::{Handle, ImageId, ImageKind, Key, Reference};
pub use name::{ClassName, Name, NodeName};
pub use path::{AbsolutePath, RootPath};
pub use size::{Size, SizeRange, SizeRules};
pub use topology::{Requirement, TOPOLOGY_KEY, Topology};

use std::collections::BTreeMap;

/// A map of texts, in the order of its keys.
pub type Map = BTreeMap<String, String>;
