//! Package `identity`: who the driver is to clients of what CSI does not have.

mod capabilities;
mod service;

use std::sync::Arc;

use drumlin_core::ops::Operations;
use drumlin_proto::identity;
use tonic::service::Routes;

/// What the service needs.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    operations: Arc<Operations>,
    driver: Arc<str>,
}

/// The services of the package that are served, as reflection names them.
pub(crate) const SERVICES: [&str; 1] = [identity::identity_server::SERVICE_NAME];

impl Front {
    /// A front to `operations` that calls itself `driver`.
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
