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
mod attacks;
mod capacity;
mod certificate_rotation;
mod chaos;
mod classes;
mod controller;
mod definitions;
mod end_to_end;
mod example;
mod faults;
mod front;
mod front_kills;
mod gitops;
#[path = "../black_box/helpers.rs"]
mod helpers;
mod histories;
#[path = "../black_box/host.rs"]
mod host;
mod host_mounts;
mod image;
mod installed;
mod kills;
mod kustomize;
mod metrics;
mod migration;
mod node;
mod object_lifecycle;
mod owners;
mod pod_security;
mod policies;
mod rbac;
mod sanity;
mod schedules;
mod server;
mod set_back;
mod sidecars;
mod sources;
#[path = "../sanity/tool.rs"]
mod tool;
mod two_fronts;
mod validation_parity;
