//! The wire: messages and services generated from the `.proto` files, and the socket they travel over.
//!
//! | where | what |
//! | --- | --- |
//! | [`csi::v0_1`], [`csi::v0`] | Container Storage Interface 0.1 and 0.3 |
//! | [`csi::v1`] | Container Storage Interface 1.13, with what it took away from 1.12 |
//! | [`volumegroup`] | groups of volumes, for both projects that speak it |
//! | [`identity`], [`reclaimspace`] | who a driver is, and free blocks given back, for clients of what CSI does not have |
//! | [`pluginregistration`] | how a plugin introduces itself to kubelet |
//! | [`drumlin::v1`] | what those have no words for |
//! | [`FILE_DESCRIPTOR_SET`] | all packages described, for reflection |
//! | [`MOUNT_ROOT`], [`MOUNT_ROOT_METADATA`] | how the reconciler says below which directory a volume is mounted |
//! | [`Endpoint`], [`socket_path`], [`connect`] | the socket's address as people write it, and a client's channel to it |
//! | `csi/v1/csi.proto`, `volumegroup/volumegroup.proto` and others | what the modules are generated from; one file a package |
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

/// A module of what is generated from a package; our lints are not for it.
macro_rules! generated {
    ($(#[$doc:meta])* $name:ident = $package:literal) => {
        $(#[$doc])*
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
        pub mod $name {
            tonic::include_proto!($package);
        }
    };
}

mod socket;

/// What `csi.v1.Node/NodePublishVolume` may find in its `volume_context`: the directory below which no link of the target
/// path is followed, and what is missing is made.
pub const MOUNT_ROOT: &str = "drumlin.dev/mount-root";

/// The same of `csi.v1.Node/NodeUnpublishVolume`, which has no context: metadata of the call.
pub const MOUNT_ROOT_METADATA: &str = "drumlin-mount-root-bin";

pub use socket::{Endpoint, EndpointError, connect, socket_path};

/// All packages described as an encoded `FileDescriptorSet`, imports included.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Packages of the Container Storage Interface.
pub mod csi {
    generated! {
        /// Version 0.1.
        v0_1 = "csi"
    }

    generated! {
        /// Version 0.3.
        v0 = "csi.v0"
    }

    generated! {
        /// Version 1: 1.13 and what it took away from 1.12.
        v1 = "csi.v1"
    }
}

generated! {
    /// Groups of volumes, as two projects speak it.
    volumegroup = "volumegroup"
}

/// Our own.
pub mod drumlin {
    generated! {
        /// Version 1.
        v1 = "drumlin.v1"
    }
}

generated! {
    /// Who a driver is to clients of what CSI does not have.
    identity = "identity"
}

generated! {
    /// Giving free blocks back.
    reclaimspace = "reclaimspace"
}

generated! {
    /// How a plugin introduces itself to kubelet.
    pluginregistration = "pluginregistration"
}
