//! `csi.v1` for a whole cluster: the controller services, whose calls run on the nodes.

mod capabilities;
mod controller;
mod front;
mod group_controller;
mod identity;

pub(crate) use front::Front;
