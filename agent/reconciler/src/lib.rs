//! Reconciles manifests by calling a CSI socket.
//!
//! - [`source`]: the sources of manifests: a directory of YAML files, and the objects of an API server.
//! - [`object_source`]: what is asked of a source that keeps the objects in a store of its own.
//! - [`ingest`]: turns manifests into records that are reconciled.
//! - [`store`], [`record`], [`api_object`]: the persistent record of each object.
//! - [`engine`], [`queue`], [`backoff`]: which object is reconciled when, and how a failure is retried.
//! - [`kinds`]: a file per kind: the calls that make the observed state match the manifest.
//! - [`controller`]: work for the whole cluster that no single node can do.
//! - [`api_server`]: the connection to an API server, and watches of it, for others, too.
//! - [`inventory`]: the resources of the agent, by owner.
//! - [`prune`]: which objects are destroyed when their manifests are gone.
//! - [`drift`], [`mount_watch`]: the drift check of resources and mounts.
//! - [`capacity_watch`]: looks for the room that objects wait for.
//! - [`schedule`], [`clock_watch`]: when schedules run, also after the clock was set.
//! - [`incomplete`]: why what an administrator asked for is not done yet.
//! - [`requests`]: commands of an administrator that no manifest expresses.
//! - [`state_file`]: writes files of a state directory, also for others.
//! - [`manifest_scan`]: reads manifests without applying them.
//! - [`observer`]: what can be measured of a reconciler.
//! - [`count`]: numbers of things, for people.
//! - [`status`]: the status table for the operator.
//! - [`kept`]: resources that belong to no object, and the commands of an administrator for them.
//! - [`mod@apply`]: one pass over the manifests, for scripts.
//! - [`plan`]: what a pass would do, by a dry run of the reconciler.
//! - [`describe`], [`events`]: one object for a person, and the last transitions of all.
//! - [`destroyed`]: the last events of objects that are gone.
//! - [`trash`]: deleted volumes that can be undeleted.
//! - [`restore`]: generates the manifests that restore a snapshot.
//!
//! **Invariant:** the socket is the only interface to the agent; nothing here depends on its operations.
//! **Invariant:** a missing manifest deletes nothing. Only `drumlin.dev/state: absent` destroys.
//! **Invariant:** the arguments that a retried call must repeat are on disk before the first call (idempotency).
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

mod age;
mod api_object;
pub mod api_server;
mod apply;
pub mod awaited;
mod backoff;
mod blocking;
mod capacity_watch;
mod client;
mod clock_watch;
pub mod colours;
pub mod controller;
mod count;
pub mod describe;
mod destroyed;
mod drift;
mod dry_run;
mod engine;
pub mod events;
mod incomplete;
mod ingest;
mod inventory;
mod inventory_calls;
pub mod kept;
mod kinds;
mod known_directory;
pub mod manifest_scan;
mod marker;
mod mount_watch;
mod object_source;
pub mod objects;
mod observer;
mod one_pass;
pub mod plan;
mod prune;
mod queue;
mod record;
mod record_locks;
mod request_watch;
mod requests;
pub mod restore;
mod schedule;
mod source;
mod staging;
mod state;
pub mod state_file;
pub mod status;
mod store;
mod transport;
pub mod trash;
mod write_behind;

pub use apply::apply;
pub use backoff::reason_of;
pub use client::progress_of;
pub use count::counted;
pub use incomplete::Incomplete;
pub use observer::Observer;
pub use prune::Prune;
pub use record::rfc3339;
pub use source::file_name::Entry;
pub use state::lock;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
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
    watch::{self, Watch},
};
use state::{HostMounts, Shared};
use store::Store;

/// An error of the reconciler.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state directory cannot be used.
    #[error("{0}")]
    State(String),
    /// The endpoint cannot be dialled.
    #[error("{0}")]
    Endpoint(String),
    /// The agent does not answer.
    #[error("the agent does not answer: {0}")]
    Unreachable(String),
    /// An object was recreated under the same name while its predecessor was reconciled.
    #[error("{0} was recreated while it was reconciled")]
    Replaced(String),
    /// The address of the API server is not known.
    #[error("{0}")]
    Cluster(String),
    /// There is nothing to restore, or the requested names are not valid.
    #[error("{0}")]
    Restore(String),
    /// A resource does not exist, or belongs to another object.
    #[error("{0}")]
    Kept(String),
}

/// The settings of a reconciler.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The socket of the agent.
    pub socket: PathBuf,
    /// The directory of manifests, if there is one.
    pub manifests: Option<PathBuf>,
    /// Numeric ids of the users whose manifests are trusted, besides root and the user of this process.
    pub manifest_owners: Vec<u32>,
    /// Which objects of the directory are destroyed when their manifests are gone; without this none is.
    pub prune: Option<Prune>,
    /// The API server whose objects are reconciled, if any.
    pub cluster: Option<Cluster>,
    /// The agent's state directory; the reconciler's is below it.
    pub state_dir: PathBuf,
    /// What tests change; see [`Hooks`].
    pub hooks: Hooks,
}

/// What the fail points and the time lapse of a test build act on.
#[derive(Debug, Clone, Copy)]
pub struct Hooks {
    /// Called with a name between any two steps: the fail points.
    pub fail: fn(&str),
    /// Maps each wait of minutes or hours to the time that is really waited for.
    pub time_lapse: fn(Duration) -> Duration,
    /// The time of the day, for schedules.
    pub now: fn() -> SystemTime,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            fail: |_| {},
            time_lapse: |time| time,
            now: SystemTime::now,
        }
    }
}

/// Settings for objects of an API server.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// The kubeconfig file; without one, the in-cluster configuration of the pod or the environment is used.
    pub kubeconfig: Option<PathBuf>,
    /// The directories of this host below which its objects may be mounted; an empty list permits no mounts.
    pub mount_roots: Vec<PathBuf>,
    /// Mount options that are always added, whatever the objects request.
    pub mount_options: Vec<String>,
    /// True if a controller assigns nodes to objects without a node, so that this agent need not.
    pub leaves_claims: bool,
    /// Maximum random delay before the first request, so that many agents that start together spread their load.
    pub start_jitter: Duration,
}

/// Reconciles volumes, groups and snapshots with their manifests.
pub struct Reconciler {
    engine: Arc<Engine>,
    files: Option<Files>,
    cluster: Option<(Server, Cluster)>,
}

/// A directory of manifests.
struct Files {
    directory: Directory,
    watch: Watch,
    prune: Option<Prune>,
    /// Notified after each scan.
    scanned: Arc<Notify>,
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
    /// Creates a reconciler and locks its state directory. Must be called within a runtime.
    ///
    /// # Errors
    /// When another reconciler has locked the state directory, or it cannot be used; when the address of the API server
    /// is not known.
    pub async fn new(settings: Settings) -> Result<Self, Error> {
        let store = Store::open(&settings.state_dir)?;
        let shared = Arc::new(Shared::new(store, settings.state_dir, settings.hooks)?);
        let client = Client::new(&settings.socket)?;
        let trust = Trust::new(&settings.manifest_owners);
        let files = settings.manifests.as_deref();
        let files = files
            .map(|path| Files::new(path, trust, settings.prune.clone()))
            .transpose()?;
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
            shared.follow_cluster(Box::new(known.clone()), mounts);
            server = Some((known, cluster));
        }
        Ok(Self {
            engine: Arc::new(Engine::new(shared, client)),
            files,
            cluster: server,
        })
    }

    /// Reads numbers of it, also while it runs.
    pub fn observer(&self) -> Observer {
        Observer::of(&self.engine)
    }

    /// Notify this to rescan the manifests immediately.
    pub fn rescan(&self) -> Option<Arc<Notify>> {
        self.files.as_ref().map(|files| files.watch.waker())
    }

    /// Notified when the directory of manifests was read, or could not be: what is in them is on record then.
    pub fn scanned(&self) -> Option<Arc<Notify>> {
        self.files.as_ref().map(|files| Arc::clone(&files.scanned))
    }

    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let Self {
            engine,
            files,
            cluster,
        } = self;
        // Incomplete work of earlier runs continues, whatever the manifests say now.
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
                        engine.follow_capacity(),
                        engine.follow_clock(),
                        engine.follow_requests()
                    );
                };
                stop.run_until_cancelled(Box::pin(verifying)).await;
            })
        };
        // Each source in its own task: one that does not answer delays neither the other source nor the stop.
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

/// Time after which a scan of the manifests is reported as slow.
const SLOW: Duration = Duration::from_secs(10);

impl Files {
    fn new(manifests: &Path, trust: Trust, prune: Option<Prune>) -> Result<Self, Error> {
        let directory = Directory::of(manifests, trust)?;
        Ok(Self {
            watch: Watch::new(directory.path()),
            directory,
            prune,
            scanned: Arc::default(),
        })
    }

    async fn follow(mut self, engine: Arc<Engine>) {
        let mut catalog = Catalog::trusting(self.directory.owners())
            .pruning(self.prune.take(), engine.shared.store().source());
        let shown = self.directory.path().display().to_string();
        let scanned = Arc::clone(&self.scanned);
        let apply = |catalog: &mut Catalog, scan| {
            if let Err(error) = blocking(|| catalog.apply(&engine, &shown, scan)) {
                tracing::error!(error = %error, "state could not be written");
            }
            scanned.notify_one();
        };
        loop {
            // On a thread of its own, because the file system may never answer.
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
            let interval = match &scan {
                Scan::Read(content) if content.unsettled => watch::UNSETTLED,
                _ => watch::POLL,
            };
            apply(&mut catalog, scan);
            // What is refused may be what is below a mount point: its mount is not another directory.
            if catalog.is_followed() {
                self.directory.accept();
            }
            let watching = tokio::task::spawn_blocking(move || {
                self.watch.follow();
                self
            });
            let Ok(files) = watching.await else {
                return;
            };
            self = files;
            self.watch.wait(interval).await;
        }
    }
}
