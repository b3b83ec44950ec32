//! What can be measured of a cluster, from what its front knows of it.

use std::collections::BTreeMap;

use crate::front::Front;

/// The cluster in numbers, as it is now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// Agents by whether their pods are ready.
    pub agents: ByReadiness,
    /// Device classes of all nodes by whether they can be used, as the agents have reported them.
    pub classes: ByReadiness,
    /// Nodes whose storage is known.
    pub storages: usize,
    /// Volumes without a PersistentVolume, as the last audits found them.
    pub unclaimed_volumes: usize,
    /// Calls to nodes by how far they are: `fresh`, `waiting`, `running`, `done`.
    pub calls: BTreeMap<&'static str, usize>,
    /// Calls that nobody has begun, and nobody may any more.
    pub expired_calls: usize,
    /// Calls that this front has withdrawn since its start, because their agent was away.
    pub withdrawn_calls: u64,
}

/// How many of something are ready, and how many are not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByReadiness {
    /// Those that are ready.
    pub ready: usize,
    /// Those that are not.
    pub not_ready: usize,
}

impl FromIterator<bool> for ByReadiness {
    fn from_iter<T: IntoIterator<Item = bool>>(all: T) -> Self {
        let mut counts = Self::default();
        for is_ready in all {
            if is_ready {
                counts.ready += 1;
            } else {
                counts.not_ready += 1;
            }
        }
        counts
    }
}

impl Front {
    /// The cluster in numbers; none before everything was listed once, for what is missing would pass for lost.
    pub fn state(&self) -> Option<ClusterState> {
        if !self.is_ready() {
            return None;
        }
        let storages = self.view.all_storages();
        let statuses = storages.iter().filter_map(|one| one.status.as_ref());
        let classes = statuses.clone().flat_map(|status| &status.classes);
        Some(ClusterState {
            agents: self.view.readiness().into_iter().collect(),
            classes: classes.map(|class| class.ready).collect(),
            storages: storages.len(),
            unclaimed_volumes: statuses.map(|status| status.unclaimed.len()).sum(),
            calls: self.watch.progress(),
            expired_calls: self.watch.expired(),
            withdrawn_calls: self.calls.withdrawn(),
        })
    }
}
