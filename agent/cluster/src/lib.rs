//! The CSI front of a cluster: one socket for the stock sidecars, whose calls run on the nodes.
//!
//! - [`Front`]: answers the calls of the sidecars; [`volumes`], [`snapshots`]: one file per noun.
//! - [`NodeCall`], [`node_call`], [`method`], [`proto_json`]: the object by which a call reaches a node.
//! - [`calls`], [`call_watch`]: the front's side of it: create, join, wait, withdraw.
//! - [`Executor`], [`socket`]: the agent's side of it: take, run, answer.
//! - [`NodeStorage`], [`node_storage`]: the device classes of a node, and [`reservations`] of what it has not reported yet.
//! - [`Reporter`]: the agent's side of it. [`Leader`], [`audit`], [`node_labels`]: the work of the
//!   controller that leads.
//! - [`cluster_state`]: the cluster in numbers, for metrics.
//! - [`view`], [`kept`]: what is known of nodes, agents and their storage.
//!
//! **Invariant:** the disks of the nodes are the only record. No object here is desired state: whoever deletes them all
//! loses no volume.
//!
//! **Invariant:** every front answers, whichever leads. Correctness rests on the names of the calls and on the conflicts
//! that the server finds.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "tests fail by panicking"
    )
)]

mod answers;
mod audit;
mod call_watch;
mod calls;
mod cluster_state;
mod code;
mod executor;
#[cfg(test)]
mod fake_server;
mod front;
mod kept;
mod leader;
mod method;
mod node_call;
mod node_labels;
mod node_storage;
mod persistent_volumes;
mod proto_json;
mod refusal;
mod reporter;
mod reservations;
mod snapshots;
mod socket;
mod view;
mod volumes;

pub use cluster_state::{ByReadiness, ClusterState};
pub use code::NAMES as CODE_NAMES;
pub use executor::Executor;
pub use front::{Front, FrontSettings};
pub use leader::Leader;
pub use method::{Effect, METHODS, Method};
pub use node_call::{NodeCall, NodeCallSpec, NodeCallStatus, Phase};
pub use node_storage::{
    Labels, NodeStorage, NodeStorageSpec, NodeStorageStatus, StorageClassState, UnclaimedVolume,
};
pub use refusal::Refusal;
pub use reporter::Reporter;

use serde_json::Value;

/// The definitions of the kinds for the API server, each with its file name.
pub fn crds() -> Vec<(String, Value)> {
    let all = [node_call::definition(), node_storage::definition()];
    let named = all.into_iter().map(|crd| {
        let name = crd.pointer("/metadata/name").and_then(Value::as_str);
        (format!("{}.yaml", name.unwrap_or_default()), crd)
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    /// `DRUMLIN_UPDATE=1 cargo test -p drumlin-cluster` writes them anew.
    #[test]
    fn the_committed_definitions_are_current() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/base/crds");
        for (file, crd) in crds() {
            let path = directory.join(file);
            let wanted = drumlin_crd::to_yaml(&crd);
            if std::env::var_os("DRUMLIN_UPDATE").is_some() {
                fs::write(&path, &wanted).unwrap();
            }
            let found = fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(
                found, wanted,
                "{path:?} is not current: DRUMLIN_UPDATE=1 cargo test -p drumlin-cluster"
            );
        }
    }
}
