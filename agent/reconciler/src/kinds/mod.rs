//! A file per kind: makes the observed state match the manifest, one call at a time.

mod deletion;
mod finalizer;
mod group;
pub(crate) mod group_members;
mod group_snapshot;
mod host_mount;
mod mount;
mod mount_path;
mod mount_point;
mod node_rename;
mod pass;
mod schedule;
mod schedule_snapshot;
pub(crate) mod snapshot;
mod source_ref;
mod state_lost;
pub(crate) mod volume;

pub(crate) use host_mount::Confined;
pub(crate) use mount_point::MountPoint;
pub(crate) use pass::{Halt, Pass, blocked, gone, ready, stalled, waiting};
pub(crate) use state_lost::{is_held, retained, without_policy};
