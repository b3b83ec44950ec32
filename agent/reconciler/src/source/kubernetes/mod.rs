//! Objects of an API server: those of this node, and those without a node that may be assigned to it.
//!
//! The record on disk comes first: it holds the arguments that a retried call must repeat, and a volume is no more
//! durable than its node's disk. The server keeps the object until none of its resources is left (the finalizer is
//! added before the first call), and its status is written there.

#[cfg(test)]
pub(crate) mod fake_api_server;
mod follow;
pub(crate) mod ingest;
mod node_assignment;
mod object_source;
mod reach;
pub(crate) mod server;
mod status_writer;
pub(crate) mod watch;
mod watch_rate_limit;

use follow::AGAIN;
pub(crate) use follow::follow;
