//! Metrics in the text format of `OpenMetrics`, over HTTP: how long calls, programs and LVM commands took, the state of the
//! device classes and of the objects of a node, and that of a cluster.
//!
//! Without an endpoint and a file there is none of this: no listener, and spans cost what they cost without a subscriber.
//!
//! - [`definitions`]: all metrics, with their labels.
//! - [`families`]: what is counted while a process runs.
//! - [`layer`]: takes times from the spans that calls have anyway.
//! - [`agent`], [`controller`]: what is read for each scrape.
//! - [`scrape`]: what one scrape is answered.
//! - [`page`]: what is published.
//! - [`endpoint`], [`textfile`]: where it is: scrapes are answered, or a file is written; [`publisher`] does both.
//!
//! **Invariant:** no label has a value that a caller chooses: there are as many series as there are methods, codes,
//! programs, LVM commands, classes, kinds, reasons and policies.

mod agent;
mod controller;
mod definitions;
mod endpoint;
mod families;
mod layer;
mod page;
mod publisher;
mod scrape;
#[cfg(test)]
mod tests;
mod textfile;

pub(crate) use agent::AgentState;
pub(crate) use controller::ControllerState;
use endpoint::Listener;
pub(crate) use endpoint::MetricsEndpoint;
pub(crate) use families::Metrics;
pub(crate) use layer::MetricsLayer;
pub(crate) use publisher::{MetricsTargets, Publisher};
pub(crate) use textfile::Textfile;
