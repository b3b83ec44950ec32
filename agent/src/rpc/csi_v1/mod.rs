//! Package `csi.v1`: the current Container Storage Interface.

pub(super) mod capabilities;
mod controller;
pub(super) mod convert;
mod front;
mod group_controller;
mod health;
pub(super) mod identity;
mod node;
mod snapshot_metadata;

pub(crate) use front::{Front, SERVICES};
