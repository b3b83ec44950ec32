//! Metrics in the text format of `OpenMetrics`, over HTTP: how long calls, programs and LVM commands took, the state of the
//! device classes and of the objects of a node, and that of a cluster.
//!
//! Without an endpoint there is none of this: no listener, and spans cost what they cost without a subscriber.
//!
//! - [`definitions`]: all metrics, with their labels.
//! - [`families`]: what is counted while a process runs.
//! - [`layer`]: takes times from the spans that calls have anyway.
//! - [`agent`], [`controller`]: what is read for each scrape.
//! - [`scrape`]: what one scrape is answered.
//! - [`endpoint`]: where scrapes are answered.
//!
//! **Invariant:** no label has a value that a caller chooses: there are as many series as there are methods, codes,
//! programs, LVM commands, classes, kinds, reasons and policies.

mod agent;
mod controller;
mod definitions;
mod endpoint;
mod families;
mod layer;
mod scrape;
#[cfg(test)]
mod tests;

pub(crate) use agent::AgentState;
pub(crate) use controller::ControllerState;
pub(crate) use endpoint::{Listener, MetricsEndpoint};
pub(crate) use families::Metrics;
pub(crate) use layer::MetricsLayer;
