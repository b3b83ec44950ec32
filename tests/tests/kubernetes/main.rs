//! The agent beside a real Kubernetes API server, in the lab.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::too_many_lines,
    clippy::format_collect,
    dead_code,
    reason = "tests fail by panicking, and are read more than they are run"
)]

mod adopt;
mod controller;
mod definitions;
mod end_to_end;
mod example;
mod faults;
mod gitops;
mod histories;
#[path = "../black_box/host.rs"]
mod host;
mod host_mounts;
mod image;
mod installed;
mod validation_parity;
mod kills;
#[path = "../black_box/helpers.rs"]
mod helpers;
mod object_lifecycle;
mod node;
mod owners;
mod policies;
#[path = "../black_box/histories/random.rs"]
mod random;
mod kustomize;
mod chaos;
mod rbac;
mod certificate_rotation;
mod sources;
mod sidecars;
