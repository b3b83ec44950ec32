//! Package `csi.v0`: the Container Storage Interface 0.3.

mod capabilities;
mod controller;
mod convert;
mod front;
mod identity;
mod node;

pub(crate) use front::{Front, SERVICES};
