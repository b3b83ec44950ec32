//! Which classes this node has: what its configuration and its labels say, as they change.

mod keeper;
mod record;
mod reload;

pub(crate) use keeper::{ClassKeeper, LabelSource};
pub(crate) use record::ClassRecord;
pub(crate) use reload::{ClassReload, Reloads};
