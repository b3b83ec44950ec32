//! The command line.

mod command;
mod daemons;
mod doctor;
mod kinds_word;
mod kubelet;
mod manifests;
mod object_word;
mod objects;
mod prune;
mod selection;
mod snapshots;

pub(crate) use command::{Cli, Command};
pub(crate) use daemons::{
    AgentArguments, ControllerArguments, LogArguments, MetricsArguments, OwnerArguments,
    PingArguments, ReconcileArguments, ThawWatchdogArguments, user,
};
pub(crate) use doctor::DoctorArguments;
pub(crate) use kinds_word::{KindsWord, KindsWordParser};
pub(crate) use kubelet::KubeletArguments;
pub(crate) use manifests::ManifestsArguments;
pub(crate) use object_word::{ObjectWord, ObjectWordParser};
pub(crate) use objects::{
    AdoptArguments, ApplyArguments, Confirmation, DataOutput, DeleteArguments, DescribeArguments,
    EventsArguments, GetArguments, GetOutput, HandoverArguments, HostArguments, KeptArguments,
    ObjectKind, Output, PlanArguments, StatusArguments, TrashArguments, UndeleteArguments,
    ValidateArguments, WaitArguments,
};
pub(crate) use prune::{PruneArguments, PruneWhen};
pub(crate) use selection::{NamespaceArguments, SelectionArguments};
pub(crate) use snapshots::{
    ComparedKind, DiffArguments, GroupSnapshotKind, RestoreArguments, RollbackArguments,
    SnapshotKind,
};
