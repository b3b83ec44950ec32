//! Follows the configuration file and the labels of the Node.
//!
//! **Invariant:** a file that is not valid, or that has lost all of its classes, changes nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drumlin_core::ops::Operations;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::keeper::ClassKeeper;
use crate::{
    cli::AgentArguments,
    config::{Config, Fixed, Labels, problems},
    directory_watch::DirectoryWatch,
    service_manager::ServiceManager,
};

/// Time for a change of the file to be complete, such as of the links of a `ConfigMap`.
const SETTLE: Duration = Duration::from_millis(200);
/// Pause before a retired class is read again, while an operation is in flight that may create an image in it.
const PAUSE: Duration = Duration::from_secs(1);

/// What makes the agent look at its classes again.
#[derive(Debug)]
pub(crate) struct Reloads {
    /// A request to read the configuration file again.
    pub(crate) requested: Arc<Notify>,
    /// The labels of the Node, in a cluster.
    pub(crate) labels: Option<watch::Receiver<Option<Labels>>>,
}

/// Follows the configuration of an agent.
#[derive(Debug)]
pub(crate) struct ClassReload {
    keeper: ClassKeeper,
    operations: Arc<Operations>,
    arguments: AgentArguments,
    fixed: Fixed,
    file: Option<WatchedFile>,
}

/// The configuration file, and its text when it was read last.
#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    text: Option<String>,
    /// None if the directory cannot be watched.
    changes: Option<DirectoryWatch>,
}

/// Why the configuration is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Requested,
    FileChanged,
}

impl ClassReload {
    /// Follows the configuration that `arguments` name; `fixed` is what was read of it at start.
    pub(crate) fn new(
        keeper: ClassKeeper,
        operations: &Arc<Operations>,
        arguments: AgentArguments,
        fixed: Fixed,
    ) -> Self {
        Self {
            keeper,
            operations: Arc::clone(operations),
            file: arguments.config.as_deref().map(WatchedFile::new),
            arguments,
            fixed,
        }
    }

    /// Follows the configuration and the labels until `stop`.
    pub(crate) async fn run(mut self, mut reloads: Reloads, stop: CancellationToken) {
        let following = async {
            let (mut changes, mut is_in_flight) = (0, false);
            loop {
                let operations = Arc::clone(&self.operations);
                let has_retired = self.keeper.has_retired();
                let settled = async {
                    match (has_retired, is_in_flight) {
                        (false, _) => std::future::pending().await,
                        (true, true) => sleep(PAUSE).await,
                        (true, false) => operations.changed(&mut changes).await,
                    }
                };
                tokio::select! {
                    () = reloads.requested.notified() => self.reload(Reason::Requested).await,
                    () = file_changed(self.file.as_ref()) => {
                        sleep(SETTLE).await;
                        self.reload(Reason::FileChanged).await;
                    }
                    labels = next_labels(reloads.labels.as_mut()) => {
                        self.keeper.follow(&operations, None, Some(labels)).await;
                    }
                    () = settled => is_in_flight = self.keeper.settle(&operations).await,
                }
            }
        };
        stop.run_until_cancelled(following).await;
    }

    /// Reads the configuration again, and applies what can be applied.
    async fn reload(&mut self, reason: Reason) {
        let has_changed = self.file.as_mut().is_some_and(WatchedFile::has_changed);
        if !has_changed && reason == Reason::FileChanged {
            return;
        }
        let status = self.apply().await;
        let manager = ServiceManager::of_environment();
        match reason {
            Reason::Requested => manager.reloaded(&status),
            // It is not the end of a reload that was requested meanwhile.
            Reason::FileChanged => manager.show(&status),
        }
    }

    /// Loads the configuration, if it is one that a running agent can have.
    fn load(&self) -> anyhow::Result<Config> {
        let config = Config::load(&self.arguments)?;
        self.keeper.check(&config.classes, &self.arguments)?;
        Ok(config)
    }

    /// Applies what can be applied of the configuration; returns in one line what was.
    async fn apply(&mut self) -> String {
        let config = match self.load() {
            Ok(config) => config,
            Err(error) => {
                let problems = problems(&error);
                for error in &problems {
                    tracing::error!(
                        error,
                        "configuration not applied; the former one stays in force"
                    );
                }
                // The service manager shows one line.
                return format!("configuration not applied: {}", problems.join("; "));
            }
        };
        let keys = self.fixed.differences(&config.fixed);
        if !keys.is_empty() {
            tracing::warn!(
                keys = keys.join(", "),
                "changed settings not applied; restart the agent to apply them"
            );
        }
        tracing::info!("configuration read again");
        self.keeper.note_fixed(keys);
        self.keeper
            .follow(&self.operations, Some(config.classes), None)
            .await;
        let mut outcome = "configuration read again".to_owned();
        for (what, which) in [
            (
                ", but these changes need a restart",
                self.keeper.unapplied(),
            ),
            ("; retired classes", self.keeper.retired()),
        ] {
            if !which.is_empty() {
                outcome = format!("{outcome}{what}: {}", which.join(", "));
            }
        }
        outcome
    }
}

impl WatchedFile {
    fn new(path: &Path) -> Self {
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let name = path.file_name().map(ToOwned::to_owned);
        // The links of a mounted ConfigMap, by which its files change, begin with two dots.
        let is_ours = move |changed: &Path| {
            let changed = changed.file_name();
            changed == name.as_deref()
                || changed.is_some_and(|name| name.as_encoded_bytes().starts_with(b".."))
        };
        let changes = DirectoryWatch::of_paths(parent.unwrap_or(Path::new(".")), is_ours);
        let changes = changes.inspect_err(|error| {
            tracing::warn!(path = %path.display(), %error, "configuration file not watched; SIGHUP reads it again");
        });
        Self {
            path: path.to_owned(),
            text: fs::read_to_string(path).ok(),
            changes: changes.ok(),
        }
    }

    /// Returns true if the file has another text than before.
    fn has_changed(&mut self) -> bool {
        let text = fs::read_to_string(&self.path).ok();
        let has_changed = text != self.text;
        self.text = text;
        has_changed
    }
}

/// Waits for a change in the directory of the file.
async fn file_changed(file: Option<&WatchedFile>) {
    match file.and_then(|file| file.changes.as_ref()) {
        Some(changes) => changes.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits for other labels of the Node.
async fn next_labels(labels: Option<&mut watch::Receiver<Option<Labels>>>) -> Labels {
    if let Some(labels) = labels {
        while labels.changed().await.is_ok() {
            if let Some(known) = labels.borrow_and_update().clone() {
                return known;
            }
        }
    }
    std::future::pending().await
}
