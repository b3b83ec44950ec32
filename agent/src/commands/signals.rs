//! Signal handling of the daemons.

use std::sync::Arc;

use anyhow::Context;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};
use tokio_util::sync::CancellationToken;

/// The installed signal handlers.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// Sent when another process opens a file with a lease of this process; the default action would kill the process.
    lease: Signal,
}

impl Signals {
    /// Installs the handlers: from here on these signals no longer kill the process.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("could not install signal handlers");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
            lease: listen(SignalKind::io())?,
        })
    }

    /// The first SIGTERM or SIGINT starts a graceful shutdown, the second one exits immediately. SIGHUP notifies
    /// `hang_up`.
    pub(crate) async fn watch(mut self, stop: CancellationToken, hang_up: Vec<Arc<Notify>>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
                _ = self.lease.recv() => continue,
                _ = self.hang_up.recv() => {
                    for waiting in &hang_up {
                        waiting.notify_one();
                    }
                    continue;
                }
            }
            if stop.is_cancelled() {
                std::process::exit(1);
            }
            tracing::info!("shutting down after in-flight operations");
            stop.cancel();
        }
    }
}
