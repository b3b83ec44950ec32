//! `drumlin agent`: serves CSI until it is told to stop.

use std::{path::Path, time::Duration};

use anyhow::Context;
use drumlin_core::{host::exec, ops::Operations};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::AgentArguments, config::Config, lock::StateLock, server, socket::Socket, telemetry,
};

/// How long running changes may take to end before the agent goes without them: a repeat finishes or undoes them.
const PATIENCE: Duration = Duration::from_secs(8);

/// Runs the agent.
pub(crate) async fn run(arguments: AgentArguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments)?;
    telemetry::start(config.log_format, &config.log_filter)?;
    check_host()?;
    let _lock = StateLock::take(&config.state_dir)?;
    let stop = CancellationToken::new();
    // Before anything can be half-done: from here on a signal ends the agent in order.
    let signals = Signals::new()?;
    let (socket, listener) = Socket::bind(config.endpoint.path())?;
    let operations = Operations::new(config.settings, config.classes);
    operations.recover().await;
    tracing::info!(
        endpoint = %config.endpoint,
        node = %operations.settings().node,
        version = env!("CARGO_PKG_VERSION"),
        "agent started"
    );
    tokio::spawn(signals.watch(stop.clone()));
    let serving = server::serve(
        operations.clone(),
        &config.driver,
        listener,
        stop.clone().cancelled_owned(),
    );
    let drained = async {
        stop.cancelled().await;
        let _ = tokio::time::timeout(PATIENCE, operations.shut_down()).await;
    };
    // Answering may take as long as the changes that are asked about; a client that keeps a call open must not.
    let served = tokio::select! {
        served = serving => served,
        () = async { drained.await; tokio::time::sleep(Duration::from_millis(500)).await } => Ok(()),
    };
    let _ = tokio::time::timeout(PATIENCE, operations.shut_down()).await;
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

/// The signals that an agent listens to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("could not listen to signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The first SIGTERM or SIGINT asks for an end in order, the second ends the process where it stands.
    async fn watch(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
                _ = self.hang_up.recv() => continue,
            }
            if stop.is_cancelled() {
                #[expect(clippy::exit, reason = "the second signal asks for exactly this")]
                std::process::exit(1);
            }
            tracing::info!("agent stops when running changes have ended");
            stop.cancel();
        }
    }
}
