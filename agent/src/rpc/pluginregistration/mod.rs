//! Package `pluginregistration`: what kubelet asks a plugin at its registration socket.

mod front;
mod registration;

pub(crate) use front::{Front, Progress};
