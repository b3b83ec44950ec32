//! `drumlin driver-info`: serves name and capabilities of the driver, for a sidecar that runs without a node.

use anyhow::Context;
use drumlin_proto::Endpoint;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::signals::Signals;
use crate::{cli::DriverInfoArguments, config, rpc::driver_info, server, socket::Socket};

/// Serves until it is stopped.
pub(crate) async fn run(arguments: DriverInfoArguments) -> anyhow::Result<()> {
    let endpoint: Endpoint = arguments.endpoint.parse().context("endpoint")?;
    config::check_driver(&arguments.driver_name)?;
    arguments.log.start()?;
    let signals = Signals::new()?;
    let (_socket, listener) = Socket::bind(endpoint.path())?;
    let stop = CancellationToken::new();
    tokio::spawn(signals.watch(stop.clone(), None));
    tracing::info!(endpoint = %endpoint, version = crate::VERSION, "driver info started");
    let routes = driver_info::Front::new(&arguments.driver_name).register(Routes::default());
    server::serve(routes, listener, stop.cancelled_owned()).await
}
