//! Logs and traces: one line per change to standard error, as text or JSON, and at level debug the spans of each call
//! as a tree.
//!
//! - [`filter`]: which events and spans are recorded, and by whom.
//! - [`tree`], [`trace`]: the spans of a call in the log.
//! - [`exporter`]: the spans of calls in an OpenTelemetry collector.
//! - [`journal`]: log lines in the journal of systemd, with fields.
//! - [`values`]: how values are written.

mod exporter;
mod filter;
mod journal;
mod start;
mod trace;
mod tree;
mod values;

pub(crate) use exporter::{Exporter, OtlpEndpoint};
pub(crate) use start::{LogFormat, start};
pub(crate) use values::{Quoted, milliseconds};
