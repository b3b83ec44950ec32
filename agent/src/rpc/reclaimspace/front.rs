//! What the services of the package share, and their registration.

use std::sync::Arc;

use drumlin_core::ops::{Operations, Reclaimed};
use drumlin_proto::reclaimspace::{
    self, reclaim_space_controller_server::ReclaimSpaceControllerServer,
    reclaim_space_node_server::ReclaimSpaceNodeServer,
};
use tonic::service::Routes;

use crate::rpc::csi_v1::convert;

/// State shared by all services of the package.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    pub(super) operations: Arc<Operations>,
}

/// The names of the services of the package that are served, for reflection.
pub(crate) const SERVICES: [&str; 2] = [
    reclaimspace::reclaim_space_controller_server::SERVICE_NAME,
    reclaimspace::reclaim_space_node_server::SERVICE_NAME,
];

impl Front {
    /// The services for `operations`.
    pub(crate) fn new(operations: Arc<Operations>) -> Self {
        Self { operations }
    }

    /// Adds the services of the package.
    pub(crate) fn register(self, routes: Routes) -> Routes {
        routes
            .add_service(ReclaimSpaceControllerServer::new(self.clone()))
            .add_service(ReclaimSpaceNodeServer::new(self))
    }
}

/// The allocated bytes of a volume before and after, as messages; none if unknown.
pub(super) fn consumptions(
    reclaimed: Reclaimed,
) -> (
    Option<reclaimspace::StorageConsumption>,
    Option<reclaimspace::StorageConsumption>,
) {
    let message = |bytes| reclaimspace::StorageConsumption {
        usage_bytes: convert::number(bytes),
    };
    (reclaimed.before.map(message), reclaimed.after.map(message))
}
