//! Package `drumlin.v1`: extensions beyond the Container Storage Interface.

mod classes;
mod foreign;
mod front;
mod group_controller;
mod inventory;
mod trash;

pub(crate) use front::{Front, SERVICES};
