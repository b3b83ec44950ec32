//! The controller itself: it is one of several replicas until it leads.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{lease::Lease, observer::ControllerObserver, policies, view::View};
use crate::{Error, source::kubernetes::server::Server};

/// The settings of a controller.
#[derive(Debug, Clone)]
pub struct ControllerSettings {
    /// The kubeconfig file; without one, the in-cluster configuration of the pod or the environment is used.
    pub kubeconfig: Option<PathBuf>,
    /// The name of our CSI driver.
    pub driver: String,
    /// The namespace of the lease.
    pub namespace: String,
    /// The identity of this controller in the lease.
    pub identity: String,
    /// True if it assigns objects without a node to the node of their source, so that agents need not.
    pub claims_all: bool,
    /// Grace period before the objects of a missing node report it.
    pub node_grace: Duration,
}

/// Work that only one controller of a cluster does; it is begun anew when the lease is acquired, and ends with it.
pub type Led = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The controller of the cluster.
pub struct Controller {
    server: Server,
    settings: Arc<ControllerSettings>,
    led: Option<Led>,
    observer: ControllerObserver,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Controller {
    /// Creates a controller that is connected to the API server.
    ///
    /// # Errors
    /// When the address of the API server is not known.
    pub async fn new(settings: ControllerSettings) -> Result<Self, Error> {
        Ok(Self {
            server: Server::new(settings.kubeconfig.as_deref()).await?,
            settings: Arc::new(settings),
            led: None,
            observer: ControllerObserver::default(),
        })
    }

    /// The same with more work to do while it leads.
    #[must_use]
    pub fn with(mut self, led: Led) -> Self {
        self.led = Some(led);
        self
    }

    /// Reads what it finds out, also while it runs.
    pub fn observer(&self) -> ControllerObserver {
        self.observer.clone()
    }

    /// Runs until `stop`, and is active while it holds the lease.
    pub async fn run(self, stop: CancellationToken) {
        let Self {
            server,
            settings,
            led,
            observer,
        } = self;
        let mut lease = Lease::new(server.client(), &settings.namespace, &settings.identity);
        let leading = async {
            loop {
                lease.acquire().await;
                observer.note_lead();
                tracing::info!(
                    identity = settings.identity,
                    "lease acquired; controller leads"
                );
                let more = async {
                    if let Some(led) = &led {
                        led().await;
                    }
                    std::future::pending::<()>().await;
                };
                let mut view = View::new(server.clone(), Arc::clone(&settings));
                tokio::select! {
                    () = lease.keep() => {
                        tracing::warn!(identity = settings.identity, "lease lost; another controller may lead");
                    }
                    () = Box::pin(view.follow()) => {}
                    () = Box::pin(policies::watch(&server, &settings, &observer)) => {}
                    () = more => {}
                }
                observer.note_loss();
            }
        };
        stop.run_until_cancelled(leading).await;
        lease.release().await;
    }
}
