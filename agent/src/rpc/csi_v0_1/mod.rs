//! Package `csi`: the Container Storage Interface 0.1.

mod capabilities;
mod controller;
mod convert;
mod front;
mod identity;
mod node;
mod version;

pub(crate) use front::{Front, SERVICES};
