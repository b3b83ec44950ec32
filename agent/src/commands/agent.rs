//! `drumlin agent`: serves CSI until it is told to stop.

use std::{path::Path, time::Duration};

use drumlin_core::{fail, host::exec, ops::Operations};
use drumlin_reconciler::{Reconciler, Settings};
use tokio_util::sync::CancellationToken;

use super::signals::Signals;
use crate::{
    cli::AgentArguments, config::Config, lock::StateLock, server, socket::Socket, telemetry,
};

/// How long running changes may take to end before the agent goes without them: a repeat finishes or undoes them.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long a client may keep a call open after all changes have ended.
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
        version = env!("CARGO_PKG_VERSION"),
        "agent started"
    );
    let stop = CancellationToken::new();
    let rescan = reconciler.as_ref().map(Reconciler::rescan);
    tokio::spawn(signals.watch(stop.clone(), rescan));
    let reconciling = reconciler.map(|reconciler| tokio::spawn(reconciler.run(stop.clone())));
    let serving = server::serve(
        operations.clone(),
        &config.driver,
        listener,
        stop.clone().cancelled_owned(),
    );
    let drained = async {
        stop.cancelled().await;
        let _ = tokio::time::timeout(PATIENCE, operations.shut_down()).await;
        tokio::time::sleep(GRACE).await;
    };
    let served = tokio::select! {
        served = serving => served,
        () = drained => Ok(()),
    };
    let _ = tokio::time::timeout(PATIENCE, operations.shut_down()).await;
    if let Some(reconciling) = reconciling {
        let _ = tokio::time::timeout(GRACE, reconciling).await;
    }
    drop(socket);
    tracing::info!("agent stopped");
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
