//! An agent that follows an API server, as a node of its own.

use drumlin_proto::csi::v1::{ListSnapshotsRequest, ListVolumesRequest};
use drumlin_tests::{
    agent::{Agent, Options},
    cluster::Cluster,
    storage::Scratch,
};

use crate::helpers::ok;

/// A node.
pub(crate) struct Node {
    pub(crate) agent: Agent,
    pub(crate) name: String,
}

impl Node {
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        Self::with(cluster, Options::default()).await
    }

    pub(crate) async fn with(cluster: &Cluster, options: Options) -> Self {
        Self::named(cluster, &cluster.name("node"), options).await
    }

    pub(crate) async fn named(cluster: &Cluster, name: &str, options: Options) -> Self {
        let options = following(cluster, name, options);
        Self {
            agent: Agent::with(Scratch::new(), options).await,
            name: name.to_owned(),
        }
    }

    /// Starts the agent again.
    pub(crate) async fn restart_with(&mut self, cluster: &Cluster, options: Options) {
        self.agent.kill();
        let options = following(cluster, &self.name, options);
        self.agent.restart_with(options).await;
    }

    /// A manifest of a volume of this node.
    pub(crate) fn volume(&self, name: &str, capacity: &str, more: &str) -> String {
        volume(
            name,
            &format!("nodeName: {}\n  capacity: {capacity}\n  {more}", self.name),
        )
    }

    /// How many volumes and snapshots there are.
    pub(crate) async fn holds(&self) -> (usize, usize) {
        holds(&self.agent).await
    }
}

/// How many volumes and snapshots an agent has.
pub(crate) async fn holds(agent: &Agent) -> (usize, usize) {
    let volumes = ListVolumesRequest::default();
    let volumes = ok(agent.controller().list_volumes(volumes).await);
    let snapshots = ListSnapshotsRequest::default();
    let snapshots = ok(agent.controller().list_snapshots(snapshots).await);
    (volumes.entries.len(), snapshots.entries.len())
}

fn following(cluster: &Cluster, node: &str, mut options: Options) -> Options {
    options.node = Some(node.to_owned());
    options.arguments.extend(cluster.arguments());
    options
}

/// A manifest of a volume.
pub(crate) fn volume(name: &str, spec: &str) -> String {
    manifest("Volume", name, spec)
}

/// A manifest.
pub(crate) fn manifest(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: drumlin.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n"
    )
}
