//! The agent's part in a cluster beside its objects: it runs the calls of the controller, and reports its storage.

use std::path::Path;

use drumlin_cluster::{Executor, Labels, Reporter};
use drumlin_reconciler::{Cluster, api_server};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use super::hooks::HOOKS;

/// An agent that is a member of a cluster.
pub(super) struct ClusterMember {
    client: kube::Client,
    channel: Channel,
    node: String,
    namespace: String,
    labels: watch::Sender<Option<Labels>>,
}

impl ClusterMember {
    /// The agent of `node` behind `socket`, as a member of `cluster` whose controller is in `namespace`.
    ///
    /// # Errors
    /// When the API server is not known, or the socket cannot be dialled.
    pub(super) async fn new(
        cluster: &Cluster,
        socket: &Path,
        node: &str,
        namespace: &str,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            client: api_server::client(cluster.kubeconfig.as_deref()).await?,
            channel: drumlin_proto::connect(socket)?,
            node: node.to_owned(),
            namespace: namespace.to_owned(),
            labels: watch::Sender::default(),
        })
    }

    /// The labels of the Node, as the controller writes them.
    pub(super) fn labels(&self) -> watch::Receiver<Option<Labels>> {
        self.labels.subscribe()
    }

    /// Takes part until `stop`.
    pub(super) async fn run(self, stop: CancellationToken) {
        let executor = Executor::new(
            self.client.clone(),
            (&self.namespace, &self.node),
            self.channel.clone(),
            HOOKS,
        );
        let reporter = Reporter::new(self.client, &self.node, self.channel, self.labels);
        let both = async { tokio::join!(executor.run(), reporter.run()) };
        stop.run_until_cancelled(Box::pin(both)).await;
    }
}
