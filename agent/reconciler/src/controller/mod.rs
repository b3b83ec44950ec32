//! The controller, one for a cluster: what no agent can know of its own node alone.
//!
//! - [`claims`]: what the claims of users are bound to, told to the groups and snapshots that mean them.
//! - [`nodes`]: which objects are of nodes that are gone.
//! - [`work`]: what is asked of the server about several objects at once.
//! - [`policies`]: whether the policies are in force that keep agents to their own nodes.
//! - [`lease`]: which of several controllers works.
//!
//! **Invariant:** it deletes nothing, and calls no agent.

mod cluster_cache;
mod debounce;
mod lease;
mod lost_nodes;
mod namespaced_store;
mod policies;
mod pvc_resolver;
mod status_cache;
#[cfg(test)]
mod tests;
mod work;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{Error, source::kubernetes::server::Server};
use cluster_cache::View;
use lease::Lease;

/// What a controller is told.
#[derive(Debug, Clone)]
pub struct ControllerSettings {
    /// The file that says how the API server is reached; without one it is the one of the pod, or of the environment.
    pub kubeconfig: Option<PathBuf>,
    /// The name of the CSI driver whose volumes are ours.
    pub driver: String,
    /// Where the lease is that only one of several holds.
    pub namespace: String,
    /// What this one is called among them.
    pub identity: String,
    /// Whether it gives all objects that name no node the node of what they are made of, so that agents need not.
    pub claims_all: bool,
    /// So long a node may be gone before its objects say so.
    pub node_grace: Duration,
}

/// Looks after what is a cluster's and no node's.
pub struct Controller {
    server: Server,
    settings: Arc<ControllerSettings>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Controller {
    /// A controller that knows where its API server is.
    ///
    /// # Errors
    /// When that is not known.
    pub async fn new(settings: ControllerSettings) -> Result<Self, Error> {
        Ok(Self {
            server: Server::new(settings.kubeconfig.as_deref()).await?,
            settings: Arc::new(settings),
        })
    }

    /// Works until `stop`, whenever it holds the lease.
    pub async fn run(self, stop: CancellationToken) {
        let Self { server, settings } = self;
        let mut lease = Lease::new(server.client(), &settings.namespace, &settings.identity);
        let leading = async {
            loop {
                lease.acquire().await;
                tracing::info!(
                    identity = settings.identity,
                    "lease acquired; controller leads"
                );
                let mut view = View::new(server.clone(), Arc::clone(&settings));
                tokio::select! {
                    () = lease.keep() => {
                        tracing::warn!(identity = settings.identity, "lease lost; another controller may lead");
                    }
                    () = Box::pin(view.follow()) => {}
                    () = Box::pin(policies::watch(&server, &settings)) => {}
                }
            }
        };
        stop.run_until_cancelled(leading).await;
        lease.give_back().await;
    }
}
