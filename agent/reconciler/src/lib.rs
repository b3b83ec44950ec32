//! Converges manifests by calling a CSI socket.
//!
//! - [`source`]: where manifests come from: a directory of YAML, the objects of an API server.
//! - [`catalog`]: from what manifests say to records that are worked on.
//! - [`store`], [`record`], [`served`]: what is remembered of each object, on disk.
//! - [`engine`], [`queue`], [`backoff`]: which object is looked at when, and what a failure leads to.
//! - [`kinds`]: a file per kind: from what is there to what is wanted, a call at a time.
//! - [`controller`]: what is a cluster's and no node's.
//! - [`inventory`]: what the agent has, and for whom.
//! - [`verify`], [`mounts`]: whether what was made is still there.
//! - [`words`]: what an administrator says beside the manifests.
//! - [`status`]: what the operator is shown.
//! - [`kept`]: what no object asks for, and what an administrator does with it.
//! - [`restore`]: the manifests that restore a snapshot.
//!
//! **Invariant:** the socket is the only way in; nothing here depends on the operations.
//! **Invariant:** what is missing deletes nothing. Only `drumlin.dev/state: absent` destroys.
//! **Invariant:** what a repeated call must say again is on disk before the call is made.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        reason = "tests fail by panicking"
    )
)]

mod api_object;
mod backoff;
mod blocking;
mod client;
pub mod controller;
mod drift;
mod engine;
mod ingest;
mod inventory;
pub mod kept;
mod kinds;
mod mount_watch;
mod queue;
mod record;
mod requests;
pub mod restore;
mod source;
mod state;
pub mod status;
mod store;

pub use source::directory::is_manifest;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use blocking::blocking;
use client::Client;
use engine::Engine;
use ingest::Catalog;
use source::{
    directory::{Directory, Scan},
    kubernetes::server::Server,
    trust::Trust,
    watch::Watch,
};
use state::{HostMounts, Shared};
use store::Store;

/// Why a reconciler cannot work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state directory cannot be used.
    #[error("{0}")]
    State(String),
    /// The endpoint cannot be dialled.
    #[error("{0}")]
    Endpoint(String),
    /// An object was made again while the former one of its name was worked on.
    #[error("{0} was recreated while it was reconciled")]
    Replaced(String),
    /// It is not known where the API server is.
    #[error("{0}")]
    Cluster(String),
    /// There is nothing to restore, or nothing that it could be called.
    #[error("{0}")]
    Restore(String),
    /// What no object asks for is not there, or somebody has it.
    #[error("{0}")]
    Kept(String),
}

/// What a reconciler is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The socket of the agent.
    pub socket: PathBuf,
    /// The directory of manifests, if there is one.
    pub manifests: Option<PathBuf>,
    /// The users, by number, whose manifests are believed beside those of root and of who runs this.
    pub manifest_owners: Vec<u32>,
    /// The API server whose objects it follows, if any.
    pub cluster: Option<Cluster>,
    /// The agent's state directory; the reconciler's is below it.
    pub state_dir: PathBuf,
    /// Called with a name between any two steps: where tests stop it.
    pub fail: fn(&str),
}

/// An API server.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// The file that says how it is reached; without one it is the one of the pod, or of the environment.
    pub kubeconfig: Option<PathBuf>,
    /// The directories of this host below which its objects may be mounted; nowhere when there are none.
    pub mount_roots: Vec<PathBuf>,
    /// The mount options that these have, whatever their objects ask for.
    pub mount_options: Vec<String>,
    /// Whether a controller gives nodes to the objects that name none, so that this agent need not look for them.
    pub leaves_claims: bool,
    /// Up to so long it waits before it asks the server first: very many agents that start together come one by one.
    pub start_jitter: Duration,
}

/// Keeps volumes, groups and snapshots as manifests say.
pub struct Reconciler {
    engine: Arc<Engine>,
    files: Option<Files>,
    cluster: Option<(Server, Cluster)>,
}

/// A directory of manifests.
struct Files {
    directory: Directory,
    watch: Watch,
}

impl std::fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let directory = self.files.as_ref().map(|files| files.directory.path());
        f.debug_struct("Reconciler")
            .field("directory", &directory)
            .field("is_in_cluster", &self.cluster.is_some())
            .finish_non_exhaustive()
    }
}

impl Reconciler {
    /// A reconciler that has taken its state directory. To be called within a runtime.
    ///
    /// # Errors
    /// When another reconciler has the state directory, or it cannot be used; when it is not known where the API server
    /// is.
    pub async fn new(settings: Settings) -> Result<Self, Error> {
        let store = Store::open(&settings.state_dir)?;
        let shared = Arc::new(Shared::new(store, settings.state_dir, settings.fail)?);
        let client = Client::new(&settings.socket)?;
        let trust = Trust::new(&settings.manifest_owners);
        let files = settings.manifests.as_deref();
        let files = files.map(|path| Files::new(path, trust)).transpose()?;
        if let Some(files) = &files {
            shared.follow_directory(files.watch.waker());
        }
        let mut server = None;
        if let Some(cluster) = settings.cluster {
            let known = Server::new(cluster.kubeconfig.as_deref()).await?;
            let mounts = HostMounts {
                roots: cluster.mount_roots.clone(),
                options: cluster.mount_options.clone(),
            };
            shared.follow_cluster(known.clone(), mounts);
            server = Some((known, cluster));
        }
        Ok(Self {
            engine: Arc::new(Engine::new(shared, client)),
            files,
            cluster: server,
        })
    }

    /// Who wakes this has the manifests looked at now.
    pub fn rescan(&self) -> Option<Arc<Notify>> {
        self.files.as_ref().map(|files| files.watch.waker())
    }

    /// Works until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let Self {
            engine,
            files,
            cluster,
        } = self;
        // What earlier starts left undone goes on, whatever the manifests say now.
        for key in engine.shared.keys() {
            engine.shared.queue.add(&key, Instant::now());
        }
        let working = tokio::spawn(Arc::clone(&engine).run(stop.clone()));
        let verifying = {
            let (stop, engine) = (stop.clone(), Arc::clone(&engine));
            tokio::spawn(async move {
                let verifying = async {
                    tokio::join!(
                        engine.keep_verifying(),
                        engine.keep_mounts(),
                        engine.keep_words()
                    );
                };
                stop.run_until_cancelled(Box::pin(verifying)).await;
            })
        };
        // Each source by itself: one that does not answer holds up neither the other one nor the stop.
        let files = files.map(|files| {
            let followed = files.follow(Arc::clone(&engine));
            tokio::spawn(stop.clone().run_until_cancelled_owned(followed))
        });
        let following = async {
            if let Some((server, told)) = cluster {
                let followed = source::kubernetes::follow(Arc::clone(&engine), server, &told);
                Box::pin(followed).await;
            }
            std::future::pending::<()>().await;
        };
        stop.run_until_cancelled(following).await;
        let _ = working.await;
        let _ = verifying.await;
        if let Some(files) = files {
            let _ = files.await;
        }
    }
}

/// So long a look at the manifests may take before it is said.
const SLOW: Duration = Duration::from_secs(10);

impl Files {
    fn new(manifests: &Path, trust: Trust) -> Result<Self, Error> {
        let manifests = std::path::absolute(manifests)
            .map_err(|error| Error::State(format!("{}: {error}", manifests.display())))?;
        Ok(Self {
            watch: Watch::new(&manifests),
            directory: Directory::new(manifests, trust),
        })
    }

    async fn follow(mut self, engine: Arc<Engine>) {
        let mut catalog = Catalog::default();
        let shown = self.directory.path().display().to_string();
        let apply = |catalog: &mut Catalog, scan| {
            if let Err(error) = blocking(|| catalog.apply(&engine, &shown, scan)) {
                tracing::error!(error = %error, "state could not be written");
            }
        };
        loop {
            // On a thread that nobody waits for: the file system may never answer.
            let mut looking = tokio::task::spawn_blocking(move || {
                let scan = self.directory.scan();
                (self, scan)
            });
            let looked = if let Ok(looked) = timeout(SLOW, &mut looking).await {
                looked
            } else {
                let why = format!("reading {shown} has taken more than {} s", SLOW.as_secs());
                apply(&mut catalog, Scan::Unavailable(why));
                looking.await
            };
            let Ok((files, scan)) = looked else {
                tracing::error!(
                    source = shown,
                    "reading the manifests panicked; manifests are no longer followed"
                );
                return;
            };
            self = files;
            let is_unsettled = matches!(&scan, Scan::Read(content) if content.unsettled);
            apply(&mut catalog, scan);
            let watching = tokio::task::spawn_blocking(move || {
                self.watch.follow();
                self
            });
            let Ok(files) = watching.await else {
                return;
            };
            self = files;
            self.watch.wait(is_unsettled).await;
        }
    }
}
