//! Metrics in the text format of `OpenMetrics`, over HTTP: how long calls, programs and LVM commands took, and the state of
//! the device classes.
//!
//! Without an endpoint there is none of this: no listener, and spans cost what they cost without a subscriber.
//!
//! - [`families`]: the metrics and their labels.
//! - [`layer`]: takes times from the spans that calls have anyway.
//! - [`endpoint`]: where scrapes are answered.
//!
//! **Invariant:** no label has a value that a caller chooses: there are as many series as there are methods, codes,
//! programs, LVM commands and classes.

mod endpoint;
mod families;
mod layer;

pub(crate) use endpoint::{Listener, MetricsEndpoint};
pub(crate) use families::Metrics;
pub(crate) use layer::MetricsLayer;
