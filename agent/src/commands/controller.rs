//! `drumlin controller`: the cluster-wide controller.

use std::time::Duration;

use drumlin_reconciler::controller::{Controller, ControllerSettings};
use tokio_util::sync::CancellationToken;

use super::signals::Signals;
use crate::{cli::ControllerArguments, config};

/// Runs the controller until it is stopped.
pub(crate) async fn run(arguments: ControllerArguments) -> anyhow::Result<()> {
    config::check_driver(&arguments.driver_name)?;
    arguments.log.start()?;
    let signals = Signals::new()?;
    let identity = match arguments.identity {
        Some(identity) => identity,
        None => format!("{}-{}", config::host_name()?, std::process::id()),
    };
    let controller = Controller::new(ControllerSettings {
        kubeconfig: arguments.kubeconfig,
        driver: arguments.driver_name,
        namespace: arguments.namespace,
        identity,
        claims_all: arguments.claims.are_the_controllers(),
        node_grace: Duration::from_secs(arguments.node_grace),
    })
    .await?;
    let stop = CancellationToken::new();
    tokio::spawn(signals.watch(stop.clone(), None));
    tracing::info!(version = crate::VERSION, "controller started");
    controller.run(stop).await;
    tracing::info!("controller stopped");
    Ok(())
}
