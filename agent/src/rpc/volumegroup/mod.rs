//! Package `volumegroup`: groups of volumes, for the two projects that speak it.

mod controller;

use std::sync::Arc;

use drumlin_core::ops::Operations;
use drumlin_proto::volumegroup::controller_server::{self, ControllerServer};
use tonic::service::Routes;

/// What the service needs.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    operations: Arc<Operations>,
}

/// The services of the package that are served, as reflection names them.
pub(crate) const SERVICES: [&str; 1] = [controller_server::SERVICE_NAME];

impl Front {
    /// A front to `operations`.
    pub(crate) fn new(operations: Arc<Operations>) -> Self {
        Self { operations }
    }

    /// Adds the services of the package.
    pub(crate) fn register(self, routes: Routes) -> Routes {
        routes.add_service(ControllerServer::new(self))
    }
}
