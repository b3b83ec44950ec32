//! The wire: messages and services generated from the `.proto` files, and the socket they travel over.
//!
//! | where | what |
//! | --- | --- |
//! | [`csi::v1`] | Container Storage Interface 1.13, with what it took away from 1.12 |
//! | [`volumegroup`] | groups of volumes, for both projects that speak it |
//! | [`drumlin::v1`] | what those have no words for |
//! | [`FILE_DESCRIPTOR_SET`] | all packages described, for reflection |
//! | [`Endpoint`], [`socket_path`], [`connect`] | the socket's address as people write it, and a client's channel to it |
//! | `csi/v1/csi.proto`, `volumegroup/volumegroup.proto`, `drumlin/v1/drumlin.proto` | what the modules are generated from; one file a package |
//! | `build/` | the compiler's run, and `Debug` for all messages |
//!
//! **Invariant:** no `Debug` of a message shows a secret, neither its keys nor its values, however deep the
//! message lies in another. A secret is a field annotated so, or any map with "secret" or "credential" in its name.
//!
//! **Invariant:** a number on the wire never changes its meaning; the tables in `tests/wire/` hold them all.
//!
//! There is no knowledge of storage here, no check of a request and no conversion: those are the agent's.

#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        reason = "tests fail by panicking"
    )
)]

mod socket;

pub use socket::{Endpoint, EndpointError, connect, socket_path};

/// All packages described as an encoded `FileDescriptorSet`, imports included.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Packages of the Container Storage Interface.
pub mod csi {
    /// Version 1: 1.13 and what it took away from 1.12.
    #[allow(
        clippy::all,
        clippy::pedantic,
        clippy::allow_attributes_without_reason,
        clippy::as_conversions,
        clippy::disallowed_methods,
        missing_docs,
        unreachable_pub,
        unused_qualifications,
        rust_2018_idioms,
        missing_debug_implementations,
        reason = "generated"
    )]
    pub mod v1 {
        tonic::include_proto!("csi.v1");
    }
}

/// Groups of volumes, as two projects speak it.
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    clippy::as_conversions,
    clippy::disallowed_methods,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    rust_2018_idioms,
    missing_debug_implementations,
    reason = "generated"
)]
pub mod volumegroup {
    tonic::include_proto!("volumegroup");
}

/// Our own.
pub mod drumlin {
    /// Version 1.
    #[allow(
        clippy::all,
        clippy::pedantic,
        clippy::allow_attributes_without_reason,
        clippy::as_conversions,
        clippy::disallowed_methods,
        missing_docs,
        unreachable_pub,
        unused_qualifications,
        rust_2018_idioms,
        missing_debug_implementations,
        reason = "generated"
    )]
    pub mod v1 {
        tonic::include_proto!("drumlin.v1");
    }
}
