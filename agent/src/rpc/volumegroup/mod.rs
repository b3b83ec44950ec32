//! Package `volumegroup`: volume groups, in the protocol shared by two projects.

mod controller;
mod front;

pub(crate) use front::{Front, SERVICES};
