//! What the services of the package share, and their registration.

use std::sync::Arc;

use drumlin_core::ops::Operations;
use drumlin_proto::volumegroup::controller_server::{self, ControllerServer};
use tonic::service::Routes;

/// State of the service.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    pub(super) operations: Arc<Operations>,
}

/// The names of the services of the package that are served, for reflection.
pub(crate) const SERVICES: [&str; 1] = [controller_server::SERVICE_NAME];

impl Front {
    /// The service for `operations`.
    pub(crate) fn new(operations: Arc<Operations>) -> Self {
        Self { operations }
    }

    /// Adds the services of the package.
    pub(crate) fn register(self, routes: Routes) -> Routes {
        routes.add_service(ControllerServer::new(self))
    }
}
