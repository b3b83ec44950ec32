//! `drumlin reconcile`: the reconciler alone, as a client of the socket of an agent.

use anyhow::Context;
use drumlin_proto::Endpoint;
use drumlin_reconciler::{Reconciler, Settings};
use tokio_util::sync::CancellationToken;

use super::{hooks::HOOKS, signals::Signals};
use crate::{cli::ReconcileArguments, config::pruning};

/// Runs the reconciler until it is stopped.
pub(crate) async fn run(arguments: ReconcileArguments) -> anyhow::Result<()> {
    let endpoint: Endpoint = arguments.endpoint.parse().context("endpoint")?;
    arguments.log.start(None)?;
    let signals = Signals::new()?;
    let reconciler = Reconciler::new(Settings {
        cluster: arguments.cluster.cluster(),
        socket: endpoint.path().to_owned(),
        manifests: arguments.manifests,
        prune: pruning(&arguments.prune),
        manifest_owners: arguments.owners.manifest_owners,
        state_dir: arguments.state_dir,
        hooks: HOOKS,
    })
    .await?;
    let stop = CancellationToken::new();
    tokio::spawn(signals.watch(stop.clone(), reconciler.rescan().into_iter().collect()));
    tracing::info!(endpoint = %endpoint, "reconciler started");
    reconciler.run(stop).await;
    tracing::info!("reconciler stopped");
    Ok(())
}
