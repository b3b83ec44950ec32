//! Package `drumlin.v1`: what the Container Storage Interface has no words for.

mod group_controller;
mod inventory;

use std::sync::Arc;

use drumlin_core::ops::Operations;
use drumlin_proto::drumlin::v1::{
    group_controller_server::{self, GroupControllerServer},
    inventory_server::{self, InventoryServer},
};
use tonic::service::Routes;

/// What the services need.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    operations: Arc<Operations>,
}

/// The services of the package that are served, as reflection names them.
pub(crate) const SERVICES: [&str; 2] = [
    group_controller_server::SERVICE_NAME,
    inventory_server::SERVICE_NAME,
];

impl Front {
    /// A front to `operations`.
    pub(crate) fn new(operations: Arc<Operations>) -> Self {
        Self { operations }
    }

    /// Adds the services of the package.
    pub(crate) fn register(self, routes: Routes) -> Routes {
        routes
            .add_service(GroupControllerServer::new(self.clone()))
            .add_service(InventoryServer::new(self))
    }
}
