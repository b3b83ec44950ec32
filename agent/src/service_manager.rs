//! What the agent tells the service manager that started it, by the protocol of `sd_notify(3)`: that it serves, reloads
//! or stops, and that it is alive.
//!
//! **Invariant:** without `NOTIFY_SOCKET` nothing is sent, and nothing runs.
//! **Invariant:** the watchdog is fed only after the agent's own socket has answered a call that touches no disk: an agent
//! that hangs is restarted, an agent whose disk hangs is not.

use std::{
    env,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drumlin_proto::csi::v1::{GetPluginInfoRequest, identity_client::IdentityClient};
use sd_notify::NotifyState;
use tokio::{
    sync::Notify,
    time::{interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// Pause after a failed probe at the start.
const PAUSE: Duration = Duration::from_millis(100);
/// Limit for one probe at the start; the watchdog's interval is that of later ones.
const PATIENCE: Duration = Duration::from_secs(10);

/// The service manager, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServiceManager {
    /// Nobody listens.
    Absent,
    /// `NOTIFY_SOCKET` names its socket.
    Present,
}

/// What the service manager is told about.
#[derive(Debug)]
pub(crate) struct Service {
    manager: ServiceManager,
    /// The agent's own socket.
    socket: PathBuf,
    /// Its one connection, so that the watchdog depends on no free slot for another one.
    client: IdentityClient<Channel>,
    /// Shown by `systemctl status`.
    status: String,
    /// Silence after which the service manager restarts the agent, if it does.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that the environment names.
    pub(crate) fn of_environment() -> Self {
        if env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty()) {
            Self::Present
        } else {
            Self::Absent
        }
    }

    /// The configuration is read again; [`reloaded`](Self::reloaded) ends it.
    pub(crate) fn reloading(self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(&[NotifyState::Reloading, now]),
            Err(error) => tracing::warn!(%error, "monotonic clock not read"),
        }
    }

    /// The agent has this status.
    pub(crate) fn show(self, status: &str) {
        self.tell(&[NotifyState::Status(status)]);
    }

    /// The agent serves, with this status.
    pub(crate) fn reloaded(self, status: &str) {
        self.tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    fn tell(self, states: &[NotifyState<'_>]) {
        if self == Self::Absent {
            return;
        }
        if let Err(error) = sd_notify::notify(states) {
            tracing::warn!(%error, "service manager not notified");
        }
    }
}

impl Service {
    /// An agent that serves CSI at `socket`, of the service manager that the environment names.
    ///
    /// # Errors
    /// If the path is no path of a socket.
    pub(crate) fn new(socket: &Path, status: &str) -> anyhow::Result<Self> {
        Ok(Self {
            manager: ServiceManager::of_environment(),
            socket: socket.to_owned(),
            client: IdentityClient::new(drumlin_proto::connect(socket)?),
            status: status.to_owned(),
            watchdog: sd_notify::watchdog_enabled(),
        })
    }

    /// Tells that the agent is ready, when its socket answers and `first_scan` was notified; that it is alive, until `stop`;
    /// and then that it stops.
    pub(crate) async fn run(mut self, first_scan: Option<Arc<Notify>>, stop: CancellationToken) {
        let manager = self.manager;
        if manager == ServiceManager::Absent {
            return;
        }
        let serving = async {
            // What waits for mounts afterwards must find the objects of all manifests on record.
            if let Some(first_scan) = first_scan {
                first_scan.notified().await;
            }
            while !answers(&mut self.client, PATIENCE).await {
                sleep(PAUSE).await;
            }
            manager.reloaded(&self.status);
            match self.watchdog {
                Some(limit) => {
                    let alive = || manager.tell(&[NotifyState::Watchdog]);
                    self.feed(limit / 2, alive).await;
                }
                None => std::future::pending().await,
            }
        };
        stop.run_until_cancelled(serving).await;
        let status = NotifyState::Status("completing in-flight operations");
        manager.tell(&[NotifyState::Stopping, status]);
    }

    /// Probes the socket once in each `period`, for at most as long, and calls `alive` for each answer.
    async fn feed(&mut self, period: Duration, alive: impl Fn()) {
        let mut ticks = interval(period);
        loop {
            ticks.tick().await;
            if answers(&mut self.client, period).await {
                alive();
            } else {
                tracing::warn!(
                    socket = %self.socket.display(),
                    "own socket does not answer; the service manager is not told that the agent is alive"
                );
                // Its connection may be what hangs.
                if let Ok(channel) = drumlin_proto::connect(&self.socket) {
                    self.client = IdentityClient::new(channel);
                }
            }
        }
    }
}

/// Returns true if a call that touches no disk is answered in time.
async fn answers(client: &mut IdentityClient<Channel>, limit: Duration) -> bool {
    let asked = client.get_plugin_info(GetPluginInfoRequest {});
    matches!(timeout(limit, asked).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::net::UnixListener;

    use super::*;
    use crate::server::{Offer, routes, serve};

    const PERIOD: Duration = Duration::from_millis(20);

    /// Feeds a watchdog from this socket, and counts how often.
    async fn feed(socket: &Path, fed: &AtomicUsize) {
        let mut service = Service::new(socket, "").unwrap();
        let alive = || {
            fed.fetch_add(1, Ordering::Relaxed);
        };
        service.feed(PERIOD, alive).await;
    }

    #[tokio::test]
    async fn the_watchdog_is_fed_while_the_socket_answers_and_by_no_socket_that_is_silent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let fed = AtomicUsize::new(0);
        // The kernel takes the connection, and nobody reads from it.
        let silent = timeout(10 * PERIOD, feed(&path, &fed)).await;
        assert!(silent.is_err());
        assert_eq!(fed.load(Ordering::Relaxed), 0);

        let operations = crate::fuzzing::operations().unwrap();
        let routes = routes(&operations, "org.example.test", Offer::All).unwrap();
        let enough = async {
            while fed.load(Ordering::Relaxed) < 3 {
                sleep(PERIOD).await;
            }
        };
        tokio::select! {
            served = serve(routes, listener, std::future::pending()) => served.unwrap(),
            () = feed(&path, &fed) => {}
            () = enough => {}
        }
        assert!(fed.load(Ordering::Relaxed) >= 3);
    }
}
