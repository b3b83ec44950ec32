//! The driver in a whole cluster with real kubelets, in the lab (`tests/lab/cluster/run`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking, and are read more than they are run"
)]

mod examples;
mod lab;
mod lvm_node;
mod nodes;
mod restarts;
mod rollout;
mod single_node;
