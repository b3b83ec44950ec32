//! What the front knows of the cluster: its nodes, their agents and their storage, from watches.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drumlin_reconciler::{api_server::watch, lock};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Client, Resource, ResourceExt,
    api::Api,
    runtime::watcher::{Config, Event},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::{
    kept::Kept,
    node_storage::{NodeStorage, StorageClassState},
};

/// The pods of the agents.
const AGENTS: &str = "app.kubernetes.io/name=drumlin,app.kubernetes.io/component=agent";
/// The annotation of a `NodeStorage` by which an administrator gives up a lost node, by its name.
pub(crate) const ABANDON: &str = drumlin_crd::names::ABANDON;

/// Time without a ready agent after which a node counts as lost: before that it may be restarted, or replaced by a new version.
const LOST: Duration = Duration::from_mins(2);

/// What is known of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KnownNode {
    is_schedulable: bool,
}

/// A pod of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AgentPod {
    node: String,
    is_ready: bool,
}

/// The nodes of the cluster, their agents and their storage.
pub(crate) struct ClusterView {
    client: Client,
    namespace: String,
    nodes: Mutex<Kept<KnownNode>>,
    agents: Mutex<Kept<AgentPod>>,
    /// When the agent of a node was last known to be ready, or was first seen.
    last_ready: Mutex<HashMap<String, Instant>>,
    storages: Mutex<Kept<Arc<NodeStorage>>>,
    listed: AtomicUsize,
}

impl fmt::Debug for ClusterView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterView")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// Number of lists after which everything is known: nodes, agents, storages, calls.
const LISTS: usize = 4;

impl ClusterView {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            nodes: Mutex::default(),
            agents: Mutex::default(),
            last_ready: Mutex::default(),
            storages: Mutex::default(),
            listed: AtomicUsize::new(0),
        }
    }

    /// Follows the cluster, forever; `reported` is called with the name of a node that has reported its storage.
    pub(crate) async fn follow(&self, reported: impl Fn(&str)) {
        let all = Config::default;
        let nodes = self.follow_kind(Api::all(self.client.clone()), all(), |event| {
            lock(&self.nodes).follow(event, |node: Node| {
                let is_cordoned = node.spec.and_then(|spec| spec.unschedulable);
                Some(KnownNode {
                    is_schedulable: !is_cordoned.unwrap_or(false),
                })
            });
        });
        let pods = Api::namespaced(self.client.clone(), &self.namespace);
        let agents = self.follow_kind(pods, all().labels(AGENTS), |event| {
            self.note_ready();
            lock(&self.agents).follow(event, agent);
            self.note_ready();
        });
        let storages = self.follow_kind(
            Api::all(self.client.clone()),
            all(),
            |event: Event<NodeStorage>| {
                if let Event::Apply(storage) | Event::InitApply(storage) = &event {
                    reported(&storage.name_any());
                }
                lock(&self.storages).follow(event, |storage| Some(Arc::new(storage)));
            },
        );
        futures::join!(nodes, agents, storages);
    }

    async fn follow_kind<K>(&self, api: Api<K>, config: Config, hear: impl Fn(Event<K>))
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
    {
        let mut events = watch(api, config);
        let mut is_listed = false;
        while let Some(event) = events.next().await {
            let is_list = matches!(event, Event::InitDone);
            hear(event);
            if is_list && !std::mem::replace(&mut is_listed, true) {
                self.note_list();
            }
        }
    }

    /// One more of [`LISTS`] is complete.
    pub(crate) fn note_list(&self) {
        self.listed.fetch_add(1, Ordering::Release);
    }

    /// Returns true if everything was listed once.
    pub(crate) fn is_complete(&self) -> bool {
        self.listed.load(Ordering::Acquire) >= LISTS
    }

    /// Returns true if a node is not a part of the cluster any more, as the server's store says.
    ///
    /// # Errors
    /// If the server does not answer.
    pub(crate) async fn is_gone(&self, node: &str) -> Result<bool, String> {
        if lock(&self.nodes).get(node).is_some() {
            return Ok(false);
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        match nodes.get_metadata_opt(node).await {
            Ok(found) => Ok(found.is_none()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns true if the agent of a node has no pod that is ready.
    pub(crate) fn is_away(&self, node: &str) -> bool {
        let agents = lock(&self.agents);
        !agents
            .all()
            .any(|(_, agent)| agent.node == node && agent.is_ready)
    }

    /// Notes which agents are ready, and which are new.
    fn note_ready(&self) {
        let (agents, mut last_ready) = (lock(&self.agents), lock(&self.last_ready));
        for (_, agent) in agents.all() {
            let known = last_ready.entry(agent.node.clone());
            let known = known.or_insert_with(Instant::now);
            if agent.is_ready {
                *known = Instant::now();
            }
        }
    }

    /// Returns true if the agent of a node has not been ready for [`LOST`].
    pub(crate) fn is_lost(&self, node: &str) -> bool {
        if !self.is_away(node) {
            return false;
        }
        let last_ready = lock(&self.last_ready);
        let last = last_ready.get(node);
        last.is_none_or(|last| last.elapsed() > LOST)
    }

    /// Returns true if a node is known, and has not reported its storage yet.
    pub(crate) fn is_unreported(&self, node: &str) -> bool {
        let has_reported = self
            .storage(node)
            .is_some_and(|storage| storage.reported().is_some());
        lock(&self.nodes).get(node).is_some() && !has_reported
    }

    /// Returns true if pods may be scheduled to a node.
    pub(crate) fn is_schedulable(&self, node: &str) -> bool {
        let nodes = lock(&self.nodes);
        nodes.get(node).is_some_and(|node| node.is_schedulable)
    }

    /// The storage of a node, if it has reported any.
    pub(crate) fn storage(&self, node: &str) -> Option<Arc<NodeStorage>> {
        lock(&self.storages).get(node).cloned()
    }

    /// The nodes that have a class, each with its state.
    pub(crate) fn nodes_with(&self, class: Option<&str>) -> Vec<(String, StorageClassState)> {
        let storages = lock(&self.storages);
        let with = storages
            .all()
            .filter_map(|(node, storage)| Some((node.clone(), storage.class(class)?.clone())));
        with.collect()
    }

    /// The names of all nodes that have a storage.
    pub(crate) fn storages(&self) -> Vec<String> {
        let storages = lock(&self.storages);
        storages.all().map(|(name, _)| name.clone()).collect()
    }

    /// The storages of all nodes.
    pub(crate) fn all_storages(&self) -> Vec<Arc<NodeStorage>> {
        let storages = lock(&self.storages);
        storages
            .all()
            .map(|(_, storage)| Arc::clone(storage))
            .collect()
    }

    /// For each node with an agent, whether one of its pods is ready: during an update a node may have two.
    pub(crate) fn readiness(&self) -> Vec<bool> {
        let mut nodes: HashMap<String, bool> = HashMap::new();
        for (_, agent) in lock(&self.agents).all() {
            *nodes.entry(agent.node.clone()).or_default() |= agent.is_ready;
        }
        nodes.into_values().collect()
    }

    /// Returns true if an administrator has given up the storage of a node that is gone.
    pub(crate) fn is_abandoned(&self, node: &str) -> bool {
        let storage = self.storage(node);
        storage.is_some_and(|storage| {
            let annotation = storage.annotations().get(ABANDON);
            annotation.is_some_and(|named| named == node)
        })
    }
}

/// The pod of an agent; none before it has a node.
fn agent(pod: Pod) -> Option<AgentPod> {
    let node = pod.spec?.node_name?;
    let conditions = pod.status.and_then(|status| status.conditions);
    let mut conditions = conditions.into_iter().flatten();
    let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
    Some(AgentPod {
        node,
        is_ready: is_ready && pod.metadata.deletion_timestamp.is_none(),
    })
}
