//! What the services of the package share, and their registration.

use std::sync::Arc;

use drumlin_core::ops::Operations;
use drumlin_proto::drumlin::v1::{
    classes_server::{self, ClassesServer},
    group_controller_server::{self, GroupControllerServer},
    inventory_server::{self, InventoryServer},
    trash_server::{self, TrashServer},
};
use tonic::service::Routes;

/// State shared by the services.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    pub(super) operations: Arc<Operations>,
}

/// The names of the services of the package that are served, for reflection.
pub(crate) const SERVICES: [&str; 4] = [
    group_controller_server::SERVICE_NAME,
    inventory_server::SERVICE_NAME,
    classes_server::SERVICE_NAME,
    trash_server::SERVICE_NAME,
];

impl Front {
    /// The services for `operations`.
    pub(crate) fn new(operations: Arc<Operations>) -> Self {
        Self { operations }
    }

    /// Adds the services of the package.
    pub(crate) fn register(self, routes: Routes) -> Routes {
        routes
            .add_service(GroupControllerServer::new(self.clone()))
            .add_service(InventoryServer::new(self.clone()))
            .add_service(ClassesServer::new(self.clone()))
            .add_service(TrashServer::new(self))
    }
}
