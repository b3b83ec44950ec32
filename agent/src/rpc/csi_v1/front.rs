//! What the services of the package share, and their registration.

use std::sync::Arc;

use drumlin_core::ops::Operations;
use drumlin_proto::csi::v1;
use tonic::service::Routes;

/// State shared by all services of the package.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    pub(super) operations: Arc<Operations>,
    pub(super) driver: Arc<str>,
}

/// The names of the services of the package that are served, for reflection.
pub(crate) const SERVICES: [&str; 5] = [
    v1::identity_server::SERVICE_NAME,
    v1::controller_server::SERVICE_NAME,
    v1::group_controller_server::SERVICE_NAME,
    v1::node_server::SERVICE_NAME,
    v1::snapshot_metadata_server::SERVICE_NAME,
];

impl Front {
    /// The services for `operations`, with driver name `driver`.
    pub(crate) fn new(operations: Arc<Operations>, driver: &str) -> Self {
        Self {
            operations,
            driver: driver.into(),
        }
    }

    /// Adds the services of the package. Services that are not implemented are not registered.
    pub(crate) fn register(self, routes: Routes) -> Routes {
        routes
            .add_service(v1::identity_server::IdentityServer::new(self.clone()))
            .add_service(v1::controller_server::ControllerServer::new(self.clone()))
            .add_service(v1::group_controller_server::GroupControllerServer::new(
                self.clone(),
            ))
            .add_service(v1::snapshot_metadata_server::SnapshotMetadataServer::new(
                self.clone(),
            ))
            .add_service(v1::node_server::NodeServer::new(self))
    }
}
