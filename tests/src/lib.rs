//! The harness of the black-box tests: it starts the binary, and speaks gRPC and files only.
//!
//! - [`agent`]: an agent in a scratch directory, its clients, its log and its end.
//! - [`applies`]: how a test says that it has nothing to do where it runs.
//! - [`cluster`]: a Kubernetes API server, by `kubectl`.
//! - [`collector`]: where an agent exports its traces to.
//! - [`conformance`]: what the specifications ask for, and which test shows it.
//! - [`daemon`]: programs that run until a test ends.
//! - [`doctor`]: what `drumlin doctor` says of an agent's host.
//! - [`kubelet`]: the part of kubelet that registers plugins.
//! - [`kustomize`]: kustomizations as a user writes them.
//! - [`packages`]: the packages of the binary.
//! - [`requests`]: requests as callers send them.
//! - [`storage`]: scratch directories and file systems on loop devices.
//! - [`throttle`]: devices that are read slowly.
//! - [`programs`]: programs of the host.
//! - [`proxy`]: what stands before an API server, counts, and does what a server cannot be made to do.
//! - [`random`]: numbers that a seed gives.
//! - [`relay`]: what stands before an agent's socket, counts, and holds calls back or refuses them.
//! - [`scrape`]: metrics, as a scraper sees them.
//! - [`sequence`]: a writer whose order can be told from copies of its volumes.
//! - [`sources`]: what tests read from the sources, such as the names of fail points.
//! - [`state`]: everything that an agent has to do with, to be compared.
//!
//! **Invariant:** nothing here knows the agent's code.

#![allow(
    clippy::expect_used,
    reason = "a harness that cannot go on fails the test"
)]

pub mod agent;
pub mod applies;
pub mod cluster;
pub mod collector;
pub mod conformance;
pub mod daemon;
pub mod doctor;
pub mod kubelet;
pub mod kustomize;
mod lookup;
pub mod packages;
pub mod programs;
pub mod proxy;
pub mod random;
pub mod relay;
pub mod requests;
pub mod scrape;
pub mod sequence;
pub mod sources;
pub mod state;
pub mod storage;
pub mod terminal;
pub mod throttle;
