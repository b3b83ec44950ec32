//! The classes of the configuration file: each a name and a back end.

mod directory;
mod list;
mod thick;
mod thin;
mod values;

pub(super) use list::{FileClass, classes};
pub(super) use values::Nodes;
