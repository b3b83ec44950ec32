//! `drumlin controller`: the cluster-wide controller.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use drumlin_cluster::{Front, FrontSettings, Leader};
use drumlin_proto::Endpoint;
use drumlin_reconciler::{
    api_server,
    controller::{Controller, ControllerSettings},
};
use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::{hooks::HOOKS, signals::Signals};
use crate::{
    cli::ControllerArguments,
    config,
    metrics::{ControllerState, Metrics, Publisher},
    rpc::cluster,
    server,
    socket::Socket,
};

/// Runs the controller until it is stopped.
pub(crate) async fn run(arguments: ControllerArguments) -> anyhow::Result<()> {
    config::check_driver(&arguments.driver_name).context("driverName")?;
    let targets = config::metrics_targets(&arguments.metrics)?;
    let metrics = targets.is_any().then(Metrics::of_controller);
    arguments.log.start(metrics.as_ref())?;
    let signals = Signals::new()?;
    let identity = match arguments.identity {
        Some(identity) => identity,
        None => format!("{}-{}", config::host_name()?, std::process::id()),
    };
    let endpoint = arguments.endpoint.as_deref().map(str::parse::<Endpoint>);
    let endpoint = endpoint.transpose().context("endpoint")?;
    let client = api_server::client(arguments.kubeconfig.as_deref()).await?;
    let settings = FrontSettings {
        namespace: arguments.namespace.clone(),
        hooks: HOOKS,
    };
    let front = Front::new(client, &settings);
    let leader = Leader::new(
        Arc::clone(&front),
        &arguments.driver_name,
        &arguments.namespace,
        HOOKS.time_lapse,
    );
    let leader = Arc::new(leader);
    let controller = Controller::new(ControllerSettings {
        kubeconfig: arguments.kubeconfig,
        driver: arguments.driver_name.clone(),
        namespace: arguments.namespace,
        identity,
        claims_all: arguments.claims.are_the_controllers(),
        node_grace: Duration::from_secs(arguments.node_grace),
    })
    .await?;
    let publisher = Publisher::bind(&targets).await?;
    let stop = CancellationToken::new();
    let scraped = metrics.map(|metrics| {
        let state = ControllerState::new(&front, controller.observer());
        tokio::spawn(publisher.publish(metrics, state, stop.clone()))
    });
    tokio::spawn(signals.watch(stop.clone(), Vec::new()));
    let controller = controller.with(Box::new(move || {
        let leader = Arc::clone(&leader);
        async move { Box::pin(leader.run()).await }.boxed()
    }));
    let serving = async {
        let Some(endpoint) = &endpoint else {
            return Ok(());
        };
        let (_socket, listener) = Socket::bind(endpoint.path())?;
        let routes = cluster::Front::new(Arc::clone(&front), &arguments.driver_name);
        let routes = routes.register(Routes::default());
        // What ends the server ends the controller.
        let _ending = stop.clone().drop_guard();
        server::serve(routes, listener, stop.clone().cancelled_owned()).await
    };
    let following = stop.run_until_cancelled(front.follow());
    tracing::info!(version = crate::VERSION, "controller started");
    let (served, _, ()) = tokio::join!(serving, following, controller.run(stop.clone()));
    if let Some(scraped) = scraped {
        // Its socket is removed.
        let _ = scraped.await;
    }
    tracing::info!("controller stopped");
    served
}
