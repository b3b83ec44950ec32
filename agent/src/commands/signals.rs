//! The signals that a daemon listens to.

use std::sync::Arc;

use anyhow::Context;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};
use tokio_util::sync::CancellationToken;

/// Signals that have not been looked at yet.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// Sent when a file is opened of which a lease is held; its default would end the process.
    lease: Signal,
}

impl Signals {
    /// Begins to listen: from here on no signal ends the process by itself.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("could not install signal handlers");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
            lease: listen(SignalKind::io())?,
        })
    }

    /// The first SIGTERM or SIGINT asks for an end in order, the second ends the process where it stands.
    /// SIGHUP has the manifests looked at.
    pub(crate) async fn watch(mut self, stop: CancellationToken, rescan: Option<Arc<Notify>>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
                _ = self.lease.recv() => continue,
                _ = self.hang_up.recv() => {
                    if let Some(rescan) = &rescan {
                        rescan.notify_one();
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
