//! What the services of the package share, and their registration.

use std::sync::Arc;

use drumlin_core::ops::Operations;
use drumlin_proto::identity;
use tonic::service::Routes;

/// State of the service.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    pub(super) operations: Arc<Operations>,
    pub(super) driver: Arc<str>,
}

/// The names of the services of the package that are served, for reflection.
pub(crate) const SERVICES: [&str; 1] = [identity::identity_server::SERVICE_NAME];

impl Front {
    /// The service for `operations`, with driver name `driver`.
    pub(crate) fn new(operations: Arc<Operations>, driver: &str) -> Self {
        Self {
            operations,
            driver: driver.into(),
        }
    }

    /// Adds the services of the package.
    pub(crate) fn register(self, routes: Routes) -> Routes {
        routes.add_service(identity::identity_server::IdentityServer::new(self))
    }
}
