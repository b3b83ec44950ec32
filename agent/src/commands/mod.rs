//! One file per command.

pub(crate) mod adopt;
pub(crate) mod agent;
mod agent_status;
mod cluster_member;
pub(crate) mod completions;
pub(crate) mod controller;
pub(crate) mod crds;
pub(crate) mod delete;
pub(crate) mod diff;
pub(crate) mod explain;
pub(crate) mod handover;
mod hooks;
pub(crate) mod kept;
pub(crate) mod manual;
mod object_handle;
pub(crate) mod ping;
mod print;
pub(crate) mod reconcile;
mod repetition;
pub(crate) mod restore;
pub(crate) mod rollback;
mod signals;
pub(crate) mod status;
pub(crate) mod thaw_watchdog;
pub(crate) mod validate;
