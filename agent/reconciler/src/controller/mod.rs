//! The controller, one for a cluster: work that needs more than the knowledge of a single node.
//!
//! - [`pvc_resolver`]: resolves `PersistentVolumeClaims` for the groups and snapshots that select them.
//! - [`lost_nodes`]: the objects of missing nodes.
//! - [`work`]: the requests to the server, for several objects at once.
//! - [`policies`]: checks that the policies are in force that restrict agents to their own nodes.
//! - [`lease`]: leader election.
//! - [`observer`]: what can be measured of a controller.
//!
//! **Invariant:** it deletes nothing, and calls no agent.

mod cluster_cache;
mod debounce;
mod findings;
mod job;
mod lease;
mod lost_nodes;
mod namespaced_store;
mod observer;
mod policies;
mod pvc_resolver;
mod run;
mod status_cache;
#[cfg(test)]
mod tests;
mod view;
mod work;

pub use observer::{ControllerObserver, Policies};
pub use run::{Controller, ControllerSettings, Led};
