//! Package `identity`: identity of the driver for clients of the services beyond CSI.

mod capabilities;
mod front;
mod service;

pub(crate) use front::{Front, SERVICES};
