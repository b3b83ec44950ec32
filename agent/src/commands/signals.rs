//! Signal handling of the daemons.

use std::sync::Arc;

use anyhow::Context;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};
use tokio_util::sync::CancellationToken;

use crate::service_manager::ServiceManager;

/// The installed signal handlers.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// Sent when another process opens a file with a lease of this process; the default action would kill the process.
    lease: Signal,
    /// Who is told of a reload when it is requested; none of those that never end one.
    manager: ServiceManager,
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
            manager: ServiceManager::Absent,
        })
    }

    /// Has the service manager told of a reload by the time of its request, however busy those are that carry it out:
    /// systemd waits for its end only if it knows of it when `ExecReload=` has run. Who follows requests tells that end.
    pub(crate) fn telling(self, manager: ServiceManager) -> Self {
        Self { manager, ..self }
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
                    self.manager.reloading();
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
