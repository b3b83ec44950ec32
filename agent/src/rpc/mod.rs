//! The gRPC services: a folder per package, a file per service, a method per RPC.

mod csi_pre_v1;
pub(crate) mod csi_v0;
pub(crate) mod csi_v0_1;
pub(crate) mod csi_v1;
pub(crate) mod driver_info;
pub(crate) mod drumlin_v1;
pub(crate) mod identity;
pub(crate) mod pluginregistration;
pub(crate) mod reclaimspace;
mod respond;
mod status;
pub(crate) mod volumegroup;

#[cfg(debug_assertions)]
pub(crate) use status::mutated;
pub(crate) use status::{internal, late, with_words};
