//! How operations run: their locks, their tasks, and recovery after an interruption.

pub(crate) mod changes;
pub(crate) mod locks;
pub(crate) mod recovery;
mod rekey;
pub(crate) mod tasks;
