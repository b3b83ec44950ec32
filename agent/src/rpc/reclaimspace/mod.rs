//! Package `reclaimspace`: reclaims the free blocks of volumes.

mod controller;
mod front;
mod node;

pub(crate) use front::{Front, SERVICES};
