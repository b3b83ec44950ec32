//! Converges manifests by calling a CSI socket.
//!
//! - [`source`]: where manifests come from: a directory of YAML.
//! - [`catalog`]: from what manifests say to records that are worked on.
//! - [`store`], [`record`]: what is remembered of each object, on disk.
//! - [`engine`], [`queue`], [`backoff`]: which object is looked at when, and what a failure leads to.
//! - [`kinds`]: a file per kind: from what is there to what is wanted, a call at a time.
//! - [`verify`]: whether what was made is still there.
//! - [`status`]: what the operator is shown.
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

mod backoff;
mod catalog;
mod client;
mod engine;
mod kinds;
mod queue;
mod record;
pub mod restore;
mod shared;
mod source;
pub mod status;
mod store;
mod verify;

pub use source::directory::is_manifest;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use catalog::Catalog;
use client::Client;
use engine::Engine;
use shared::Shared;
use source::{
    directory::{Directory, Scan},
    watch::Watch,
};
use store::Store;

/// How often what was made is looked for.
const VERIFY: Duration = Duration::from_mins(10);

/// Why a reconciler cannot work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state directory cannot be used.
    #[error("{0}")]
    State(String),
    /// The endpoint cannot be dialled.
    #[error("{0}")]
    Endpoint(String),
    /// There is nothing to restore, or nothing that it could be called.
    #[error("{0}")]
    Restore(String),
}

/// What a reconciler is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The socket of the agent.
    pub socket: PathBuf,
    /// The directory of manifests.
    pub manifests: PathBuf,
    /// The agent's state directory; the reconciler's is below it.
    pub state_dir: PathBuf,
    /// Called with a name between any two steps: where tests stop it.
    pub fail: fn(&str),
}

/// Keeps volumes, groups and snapshots as a directory of manifests says.
pub struct Reconciler {
    engine: Arc<Engine>,
    directory: Directory,
    watch: Watch,
}

impl std::fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciler")
            .field("directory", &self.directory.path())
            .finish_non_exhaustive()
    }
}

impl Reconciler {
    /// A reconciler that has taken its state directory. To be called within a runtime.
    ///
    /// # Errors
    /// When another reconciler has the state directory, or it cannot be used.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        let store = Store::open(&settings.state_dir)?;
        let shared = Arc::new(Shared::new(store, settings.state_dir, settings.fail)?);
        let client = Client::new(&settings.socket)?;
        let manifests = std::path::absolute(&settings.manifests)
            .map_err(|error| Error::State(format!("{}: {error}", settings.manifests.display())))?;
        Ok(Self {
            engine: Arc::new(Engine::new(shared, client)),
            watch: Watch::new(&manifests),
            directory: Directory::new(manifests),
        })
    }

    /// Who wakes this has the manifests looked at now.
    pub fn rescan(&self) -> Arc<Notify> {
        self.watch.waker()
    }

    /// Works until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let working = tokio::spawn(Arc::clone(&self.engine).run(stop.clone()));
        let verifying = tokio::spawn(
            stop.clone()
                .run_until_cancelled_owned(keep_verifying(Arc::clone(&self.engine))),
        );
        stop.run_until_cancelled(self.follow()).await;
        let _ = working.await;
        let _ = verifying.await;
    }

    async fn follow(&mut self) {
        let mut catalog = Catalog::default();
        let shown = self.directory.path().display().to_string();
        // What earlier starts left undone goes on, whatever the manifests say now.
        for key in self.engine.shared.keys() {
            self.engine.shared.queue.add(&key, Instant::now());
        }
        loop {
            let scan = self.directory.scan();
            let is_unsettled = matches!(&scan, Scan::Read(content) if content.unsettled);
            if let Err(error) = catalog.apply(&self.engine, &shown, scan) {
                tracing::error!(error = %error, "state could not be written");
            }
            self.watch.follow();
            self.watch.wait(is_unsettled).await;
        }
    }
}

async fn keep_verifying(engine: Arc<Engine>) {
    loop {
        engine.open().await;
        if let Err(failure) = engine.verify().await {
            tracing::debug!(rpc.code = ?failure.code, error = %failure.message, "could not look whether all is there");
        }
        tokio::time::sleep(VERIFY).await;
    }
}
