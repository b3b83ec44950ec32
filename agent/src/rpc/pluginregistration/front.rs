//! The service at one registration socket, and how far kubelet has come with it.

use std::path::Path;

use drumlin_proto::pluginregistration::{PluginInfo, registration_server::RegistrationServer};
use tokio::{sync::watch, time::Instant};
use tonic::service::Routes;

/// How far kubelet has come with the registration at one socket. What it did last counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Kubelet has not called yet.
    NotAsked,
    /// It called `GetInfo`, and has not said what came of it.
    Asked(Instant),
    /// It has registered the driver.
    Registered,
    /// It has not, for this reason.
    Refused(String),
}

/// The service at one socket.
#[derive(Debug)]
pub(crate) struct Front {
    pub(super) info: PluginInfo,
    pub(super) progress: watch::Sender<Progress>,
}

impl Front {
    /// The service for the CSI driver `driver`, whose CSI socket kubelet finds at `endpoint`.
    pub(crate) fn new(driver: &str, endpoint: &Path) -> Self {
        Self {
            info: PluginInfo {
                r#type: "CSIPlugin".to_owned(),
                name: driver.to_owned(),
                endpoint: endpoint.to_string_lossy().into_owned(),
                // Of CSI; kubelet compares the major version alone.
                supported_versions: vec!["1.0.0".to_owned()],
            },
            progress: watch::Sender::new(Progress::NotAsked),
        }
    }

    /// Follows the progress at this socket.
    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// The service alone.
    pub(crate) fn into_routes(self) -> Routes {
        Routes::new(RegistrationServer::new(self))
    }
}
