//! Work of the controller that leads: makes the storage object of every node that has the driver, writes the labels of
//! the Node into it, sweeps calls that nobody waits for, and audits the nodes.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use drumlin_reconciler::api_server::watch;
use futures::StreamExt;
use k8s_openapi::api::storage::v1::CSINode;
use kube::{
    Client, ResourceExt,
    api::{Api, PostParams},
    runtime::watcher::{Config, Event},
};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    audit::Audit,
    front::Front,
    node_call::{NodeCall, Progress, VALID},
    node_labels::NodeLabels,
    node_storage::{NodeStorage, NodeStorageSpec},
};

/// Interval at which calls are swept.
const ROUND: Duration = Duration::from_mins(1);

/// The work of the controller that leads.
pub struct Leader {
    audit: Audit,
    labels: NodeLabels,
    front: Arc<Front>,
    client: Client,
    driver: String,
    namespace: String,
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leader")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Leader {
    /// The work beside `front`, for the driver of this name.
    /// `time_lapse` maps waits of hours to the time that is really waited for.
    pub fn new(
        front: Arc<Front>,
        driver: &str,
        namespace: &str,
        time_lapse: fn(Duration) -> Duration,
    ) -> Self {
        Self {
            audit: Audit::new(&front, driver, time_lapse),
            client: front.client.clone(),
            labels: NodeLabels::default(),
            front,
            driver: driver.to_owned(),
            namespace: namespace.to_owned(),
        }
    }

    /// Works until it is dropped.
    pub async fn run(&self) {
        futures::join!(
            self.make_storages(),
            self.labels.follow(&self.front),
            self.sweep_calls(),
            self.audit.run()
        );
    }

    /// Makes the storage object of every node whose kubelet knows the driver. The object outlives the node: what its disks
    /// hold is not lost when the node is deleted.
    async fn make_storages(&self) {
        let nodes: Api<CSINode> = Api::all(self.client.clone());
        let mut events = watch(nodes, Config::default());
        while let Some(event) = events.next().await {
            if let Event::Apply(node) | Event::InitApply(node) = event
                && self.has_driver(&node)
            {
                self.make_storage(&node.name_any()).await;
            }
        }
    }

    fn has_driver(&self, node: &CSINode) -> bool {
        let mut drivers = node.spec.drivers.iter();
        drivers.any(|driver| driver.name == self.driver)
    }

    async fn make_storage(&self, node: &str) {
        if self.front.view.storage(node).is_some() {
            return;
        }
        let storages: Api<NodeStorage> = Api::all(self.client.clone());
        let new = NodeStorage::new(node, NodeStorageSpec {});
        match storages.create(&PostParams::default(), &new).await {
            Ok(_) => {
                tracing::info!(node, "storage object of the node created");
                self.labels.write(&self.front, node).await;
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            // The watch is started anew every few minutes, and lists all nodes.
            Err(error) => {
                tracing::warn!(node, error = %error, "storage object of the node could not be created");
            }
        }
    }

    /// Deletes calls that nobody waits for any more. A call that was taken is ended by its agent, for it alone knows what
    /// came of it; if the node is gone, there is no such agent.
    async fn sweep_calls(&self) {
        let calls: Api<NodeCall> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Attempts of calls that have ended, and how many rounds ago they were first seen so.
        let mut ended: HashMap<(String, i32), u32> = HashMap::new();
        loop {
            rounds.tick().await;
            let open = self.front.watch.known();
            if open.is_empty() {
                ended.clear();
                continue;
            }
            let mut still = HashMap::new();
            for name in open {
                let Ok(Some(call)) = calls.get_opt(&name).await else {
                    continue;
                };
                // One that was asked for once more has ended anew.
                let attempt = (call.uid().unwrap_or_default(), call.spec.attempt);
                let rounds = ended.get(&attempt).map_or(0, |rounds| rounds + 1);
                if !self.is_over(&call, rounds).await {
                    if call.progress() == Progress::Done {
                        still.insert(attempt, rounds);
                    }
                    continue;
                }
                let deleted = if call.progress() == Progress::Fresh {
                    self.front.calls.withdraw(&call).await
                } else {
                    self.front.calls.delete(&call).await.is_ok()
                };
                if deleted {
                    tracing::info!(call = name, "call swept");
                }
            }
            ended = still;
        }
    }

    /// Returns true for a call that nobody will take, or whose answer nobody has fetched for some time.
    async fn is_over(&self, call: &NodeCall, rounds: u32) -> bool {
        match call.progress() {
            Progress::Done => u64::from(rounds) * ROUND.as_secs() >= VALID.as_secs(),
            Progress::Running | Progress::Waiting => {
                self.front.view.is_gone(&call.spec.node_name).await == Ok(true)
            }
            Progress::Fresh => call.is_expired(),
        }
    }
}
