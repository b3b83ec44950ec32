//! Keeps the driver registered with kubelet.
//!
//! Kubelet calls a socket once it appears: `GetInfo`, then `NodeGetInfo` at the CSI socket, and says at last what came of it.
//! Kubelet 1.35 and older do not try again after a failure until the socket is another one
//! (<https://github.com/kubernetes/kubernetes/issues/133725>), and the notice of any version can get lost. So each failure,
//! and a notice that is overdue, leads to a new socket.
//!
//! **Invariant:** an agent that is registered waits for events alone: for a call, a change of the directory, its end.

use std::{
    future::pending,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use drumlin_core::fail::time_lapse;
use drumlin_proto::csi::v1::{GetPluginInfoRequest, identity_client::IdentityClient};
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    backoff::Backoff,
    socket::{RegistrationSocket, accept_with_tokio},
};
use crate::{
    directory_watch::DirectoryWatch,
    rpc::pluginregistration::{Front, Progress},
    server,
    telemetry::Quoted,
};

/// How long the notice may take after `GetInfo`: kubelet gives `NodeGetInfo` two minutes, and then writes to the API server.
const NOTICE: Duration = Duration::from_mins(3);
/// How long kubelet may take to call a new socket before that is worth a line in the log.
const CALL: Duration = Duration::from_mins(3);
/// Timeout of the call that finds out whether the CSI socket answers.
const ANSWER: Duration = Duration::from_secs(10);

/// What is registered, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The name of the driver.
    pub(crate) driver: String,
    /// The registration socket.
    pub(crate) registration: PathBuf,
    /// The CSI socket, as kubelet sees it.
    pub(crate) endpoint: PathBuf,
    /// The CSI socket, as this process sees it.
    pub(crate) csi: PathBuf,
}

/// Keeps a driver registered.
#[derive(Debug)]
pub(crate) struct Registrar {
    target: Target,
    backoff: Backoff,
    /// The last failure that was logged: the same one is logged once.
    logged: String,
}

impl Registrar {
    /// A registrar that has done nothing yet.
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            backoff: Backoff::default(),
            logged: String::new(),
        }
    }

    /// Keeps the driver registered until `stop`. The socket stays then, so that kubelet keeps the driver until the next agent
    /// is there.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let kept = async {
            loop {
                let ended = match self.serve().await {
                    Ok(serving) => self.follow(serving).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = ended {
                    self.note(&format!("{error:#}"));
                    sleep(time_lapse(self.backoff.pause())).await;
                }
            }
        };
        tokio::select! {
            () = kept => {}
            () = stop.cancelled() => {}
        }
    }

    /// Serves a new registration socket once the CSI socket answers.
    async fn serve(&self) -> anyhow::Result<Serving> {
        answers(&self.target.csi).await?;
        let path = self.target.registration.clone();
        let directory = path.parent().unwrap_or(&path).to_owned();
        // Before the socket is there: whatever happens to it later is seen.
        let watch = DirectoryWatch::begin(&directory)
            .with_context(|| format!("could not watch directory {}", directory.display()))?;
        let bound = spawn_blocking(move || RegistrationSocket::bind(&path)).await;
        let (socket, listener) = bound.context("the registration socket was not bound")??;
        let listener = accept_with_tokio(listener).context("could not accept connections")?;
        let front = Front::new(&self.target.driver, &self.target.endpoint);
        let progress = front.progress();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let served = tokio::spawn(server::serve(front.into_routes(), listener, stopped));
        tracing::debug!(path = %self.target.registration.display(), "registration socket created");
        Ok(Serving {
            socket,
            watch,
            progress,
            served,
            call_by: Some(Instant::now() + time_lapse(CALL)),
            _stop: stop.drop_guard(),
        })
    }

    /// Follows what kubelet does with a socket until another one should replace it. It is served up to then: kubelet may
    /// repeat a registration by itself.
    ///
    /// # Errors
    /// If the socket is of no use any more.
    async fn follow(&mut self, mut serving: Serving) -> anyhow::Result<()> {
        loop {
            let progress = serving.progress.borrow_and_update().clone();
            let deadline = match &progress {
                Progress::NotAsked => serving.call_by,
                Progress::Asked(at) => Some(*at + time_lapse(NOTICE)),
                Progress::Registered => {
                    tracing::info!(driver = %self.target.driver, "registered with kubelet");
                    self.backoff = Backoff::default();
                    self.logged.clear();
                    None
                }
                Progress::Refused(error) => {
                    self.note(&format!("kubelet did not register the driver: {error}"));
                    Some(Instant::now() + time_lapse(self.backoff.pause()))
                }
            };
            match (serving.next(deadline).await?, progress) {
                (Event::Progress, _) => {}
                (Event::Overdue, Progress::NotAsked) => {
                    self.note("kubelet has not called the registration socket; kubelet.registrationDir must be its directory plugins_registry");
                    serving.call_by = None;
                }
                (Event::Overdue, Progress::Asked(_)) => {
                    self.note(
                        "kubelet called GetInfo, and did not say what came of the registration",
                    );
                    return Ok(());
                }
                (Event::Overdue, Progress::Registered | Progress::Refused(_)) => return Ok(()),
            }
        }
    }

    /// Logs a failure, unless it was the last one that was logged.
    fn note(&mut self, failure: &str) {
        if self.logged != failure {
            tracing::warn!(
                path = %self.target.registration.display(),
                error = %Quoted(&failure),
                "not registered with kubelet"
            );
            failure.clone_into(&mut self.logged);
        }
    }
}

/// Checks that the CSI socket is served: kubelet calls it during the registration.
async fn answers(csi: &Path) -> anyhow::Result<()> {
    let mut client = IdentityClient::new(drumlin_proto::connect(csi)?);
    let asked = client.get_plugin_info(GetPluginInfoRequest {});
    let answer = timeout(ANSWER, asked).await;
    let answer = answer.context("the CSI socket did not answer in time")?;
    answer.context("the CSI socket does not answer").map(drop)
}

/// A registration socket that is served; dropped, it is served no longer.
#[derive(Debug)]
struct Serving {
    socket: RegistrationSocket,
    watch: DirectoryWatch,
    progress: watch::Receiver<Progress>,
    served: JoinHandle<anyhow::Result<()>>,
    /// When it is worth a line in the log that kubelet has not called; none after that line.
    call_by: Option<Instant>,
    _stop: DropGuard,
}

/// What happened at a socket.
#[derive(Debug)]
enum Event {
    /// Kubelet called.
    Progress,
    /// The deadline has passed.
    Overdue,
}

impl Serving {
    /// Waits for kubelet's next call, until `deadline`.
    ///
    /// # Errors
    /// If the socket is not in its place, or not served any more.
    async fn next(&mut self, deadline: Option<Instant>) -> anyhow::Result<Event> {
        let overdue = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.progress.changed() => Ok(Event::Progress),
            () = removed(&self.socket, &self.watch) => {
                bail!("the registration socket was removed or replaced")
            }
            ended = &mut self.served => {
                ended.context("the registration socket is not served any more")??;
                bail!("the registration socket is not served any more")
            }
            () = overdue => Ok(Event::Overdue),
        }
    }
}

/// Waits until the socket is not in its place any more.
async fn removed(socket: &RegistrationSocket, watch: &DirectoryWatch) {
    while socket.is_in_place() {
        watch.changed().await;
    }
}
