//! The operations on volumes and snapshots, and the back ends that store their data.
//!
//! - [`types`]: validated newtypes; their values are not validated again.
//! - [`ops`]: the rules of volumes, snapshots and nodes, once for all back ends and callers.
//! - [`backend`]: the trait that stores images, and its implementations.
//! - [`host`]: the crate for programs, block devices, file systems and mounts of this machine.
//! - [`fail`]: fail points, where a test build can be killed.
//!
//! **Invariant:** this crate names no protobuf type, no gRPC code and no Kubernetes type.
//! **Invariant:** the disk is the source of truth; what is cached is used only after a check that the disk still says so.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "tests fail by panicking"
    )
)]

pub mod backend;
#[doc(hidden)]
pub mod fuzzing;
pub mod ops;
pub mod types;

pub use drumlin_host::{self as host, Error, Kind, Result, fail};
pub(crate) use drumlin_host::{blocking, blocking_at_once};
