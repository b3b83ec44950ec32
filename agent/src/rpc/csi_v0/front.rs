//! What the services of the package share, and their registration.

use std::sync::Arc;

use drumlin_core::ops::Operations;
use drumlin_proto::csi::v0;
use tonic::service::Routes;

/// State shared by all services of the package.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    pub(super) operations: Arc<Operations>,
    pub(super) driver: Arc<str>,
}

/// The names of the services of the package that are served, for reflection.
pub(crate) const SERVICES: [&str; 3] = [
    v0::identity_server::SERVICE_NAME,
    v0::controller_server::SERVICE_NAME,
    v0::node_server::SERVICE_NAME,
];

impl Front {
    /// The services for `operations`, with driver name `driver`.
    pub(crate) fn new(operations: Arc<Operations>, driver: &str) -> Self {
        Self {
            operations,
            driver: driver.into(),
        }
    }

    /// Adds the services of the package.
    pub(crate) fn register(self, routes: Routes) -> Routes {
        routes
            .add_service(v0::identity_server::IdentityServer::new(self.clone()))
            .add_service(v0::controller_server::ControllerServer::new(self.clone()))
            .add_service(v0::node_server::NodeServer::new(self))
    }
}
