//! `drumlin agent`: serves CSI until it is told to stop.

use std::{path::Path, sync::Arc, time::Duration};

use drumlin_core::{fail, host::exec, ops::Operations};
use drumlin_reconciler::{Reconciler, Settings};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use super::signals::Signals;
use crate::{
    cli::AgentArguments, config::Config, lock::StateLock, server, socket::Socket, telemetry,
};

/// How long running changes may take to end before the agent goes without them: a repeat finishes or undoes them.
/// With twice the grace below it stays under the ten seconds that service managers commonly give.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long a client may keep a call open, and the reconciler may take, after all changes have ended.
const GRACE: Duration = Duration::from_millis(500);

/// Runs the agent, and the reconciler beside it when there are manifests.
pub(crate) async fn run(arguments: AgentArguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments)?;
    telemetry::start(config.log_format, &config.log_filter)?;
    check_host()?;
    let _lock = StateLock::take(&config.state_dir)?;
    // Before anything can be half-done: from here on a signal ends the agent in order.
    let signals = Signals::new()?;
    let (socket, listener) = Socket::bind(config.endpoint.path())?;
    let operations = Operations::new(config.settings, config.classes);
    operations.recover().await;
    let reconciler = match config.manifests {
        Some(manifests) => Some(Reconciler::new(Settings {
            socket: config.endpoint.path().to_owned(),
            manifests,
            state_dir: config.state_dir.clone(),
            fail: fail::point,
        })?),
        None => None,
    };
    tracing::info!(
        endpoint = %config.endpoint,
        node = %operations.settings().node,
        version = crate::VERSION,
        "agent started"
    );
    let stop = CancellationToken::new();
    let rescan = reconciler.as_ref().map(Reconciler::rescan);
    tokio::spawn(signals.watch(stop.clone(), rescan));
    let reconciling = reconciler.map(|reconciler| tokio::spawn(reconciler.run(stop.clone())));
    let served = serve_until_stopped(&operations, &config.driver, listener, &stop).await;
    if let Some(reconciling) = reconciling {
        let _ = tokio::time::timeout(GRACE, reconciling).await;
    }
    drop(socket);
    tracing::info!("agent stopped");
    served
}

/// Answers calls until `stop`, then waits for running changes, also for those whose callers have gone away.
async fn serve_until_stopped(
    operations: &Arc<Operations>,
    driver: &str,
    listener: UnixListener,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let ended = CancellationToken::new();
    let serving = async {
        let stopping = stop.clone().cancelled_owned();
        let answered = server::serve(Arc::clone(operations), driver, listener, stopping);
        let given_up = async {
            ended.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        let served = tokio::select! {
            served = answered => served,
            () = given_up => Ok(()),
        };
        // A server that failed ends everything else too.
        stop.cancel();
        served
    };
    let changing = async {
        stop.cancelled().await;
        let changes = operations.shut_down();
        if tokio::time::timeout(PATIENCE, changes).await.is_err() {
            tracing::warn!("a change has not ended; its repeat finishes or undoes it");
        }
        ended.cancel();
    };
    let (served, ()) = tokio::join!(serving, changing);
    served
}

/// Says in one line what this host lacks.
fn check_host() -> anyhow::Result<()> {
    if !nix::unistd::Uid::effective().is_root() {
        anyhow::bail!("the agent mounts file systems and needs root; start it with sudo");
    }
    let mut missing = Vec::new();
    if !Path::new("/dev/loop-control").exists() {
        missing.push("loop devices (modprobe loop)");
    }
    if exec::find("mkfs.ext4").is_none() {
        missing.push("mkfs.ext4 (apt-get install e2fsprogs)");
    }
    if !missing.is_empty() {
        anyhow::bail!("this host lacks {}", missing.join(" and "));
    }
    Ok(())
}
