//! The connection to an API server, and watches of it.

use std::path::Path;

use kube::Client;

pub use crate::source::kubernetes::watch::{watch, watch_failures};
use crate::{Error, source::kubernetes::server::Server};

/// Connects to the server of a kubeconfig file, or of the in-cluster configuration of this pod. Rotated certificates and
/// tokens are read again.
///
/// # Errors
/// When there is no configuration, or it cannot be read. The server is not contacted yet.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client, Error> {
    Ok(Server::new(kubeconfig).await?.client())
}
