//! The command line.

mod command;
mod daemons;
mod objects;
mod snapshots;

pub(crate) use command::{Cli, Command};
pub(crate) use daemons::{
    AgentArguments, ControllerArguments, DriverInfoArguments, PingArguments, ReconcileArguments,
};
pub(crate) use objects::{
    AdoptArguments, DeleteArguments, HandoverArguments, KeptArguments, Output, StatusArguments,
    ValidateArguments,
};
pub(crate) use snapshots::{GroupSnapshotKind, RestoreArguments, RollbackArguments, SnapshotKind};
