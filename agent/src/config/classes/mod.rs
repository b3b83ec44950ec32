//! The classes of the configuration file: each a name, a back end, and the nodes that have it.

mod class;
mod directory;
mod encryption;
mod limits;
mod node_labels;
mod plan;
mod thick;
mod thin;
mod trash;
mod values;

pub(crate) use class::{FileClass, Storage};
pub(crate) use node_labels::Labels;
pub(super) use node_labels::node_labels;
pub(crate) use plan::ClassPlan;
pub(super) use values::Nodes;
