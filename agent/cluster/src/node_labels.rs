//! Writes the labels of each Node into the storage of the node, where its agent reads them: RBAC has no rule that lets an
//! agent read its own Node and no other.

use std::sync::Mutex;

use drumlin_reconciler::{api_server, lock};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Resource, ResourceExt,
    api::{Api, Patch, PatchParams},
    runtime::watcher::{Config, Event},
};
use serde_json::json;

use crate::{
    front::Front,
    kept::Kept,
    node_call::CONTROLLER,
    node_storage::{Labels, NODE_LABELS, NodeStorage},
};

/// The labels of all Nodes.
#[derive(Debug, Default)]
pub(crate) struct NodeLabels(Mutex<Kept<Labels>>);

impl NodeLabels {
    /// Follows the Nodes, forever, and writes their labels when they change.
    pub(crate) async fn follow(&self, front: &Front) {
        let nodes: Api<Node> = Api::all(front.client.clone());
        let mut events = api_server::watch(nodes, Config::default());
        while let Some(event) = events.next().await {
            let changed = match &event {
                Event::Apply(node) | Event::InitApply(node) => {
                    Some((node.name_any(), labels(node)))
                }
                _ => None,
            };
            lock(&self.0).follow(event, |node| Some(labels(&node)));
            if let Some((node, labels)) = changed {
                write(front, &node, &labels).await;
            }
        }
    }

    /// Writes the labels of a Node into its storage, which is new.
    pub(crate) async fn write(&self, front: &Front, node: &str) {
        let labels = lock(&self.0).get(node).cloned();
        if let Some(labels) = labels {
            write(front, node, &labels).await;
        }
    }
}

/// The labels of a Node, as many as an object can have.
fn labels(node: &Node) -> Labels {
    let labels = node.labels().iter().take(NODE_LABELS);
    labels
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Writes the labels of a Node into its storage, if there is one, and others are in it.
async fn write(front: &Front, node: &str, labels: &Labels) {
    let storage = front.view.storage(node);
    let status = storage.and_then(|storage| storage.status.clone());
    if status.and_then(|status| status.node_labels).as_ref() == Some(labels) {
        return;
    }
    let storages: Api<NodeStorage> = Api::all(front.client.clone());
    // Applied, so that labels that are gone go there, too.
    let body = json!({
        "apiVersion": NodeStorage::api_version(&()),
        "kind": NodeStorage::kind(&()),
        "metadata": {"name": node},
        "status": {"nodeLabels": labels},
    });
    let how = PatchParams::apply(CONTROLLER).force();
    match storages
        .patch_status(node, &how, &Patch::Apply(&body))
        .await
    {
        Ok(_) => tracing::debug!(node, "labels of the node written into its storage"),
        // It is made when kubelet knows the driver; then they are written.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        // The watch is started anew every few minutes, and lists all nodes.
        Err(error) => {
            tracing::warn!(node, error = %error, "labels of the node not written into its storage");
        }
    }
}
