//! Notices changes of a directory.
//!
//! **Invariant:** nothing runs while nothing changes there.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// A watch of one directory: of the names in it, and of the directory itself.
#[derive(Debug)]
pub(crate) struct DirectoryWatch {
    changed: Arc<Notify>,
    _watcher: RecommendedWatcher,
}

impl DirectoryWatch {
    /// Watches `directory`.
    ///
    /// # Errors
    /// If it is missing, or the host has no inotify watch left.
    pub(crate) fn begin(directory: &Path) -> notify::Result<Self> {
        Self::of_paths(directory, |_| true)
    }

    /// Watches the paths in `directory` for which `is_watched` is true.
    ///
    /// # Errors
    /// If it is missing, or the host has no inotify watch left.
    pub(crate) fn of_paths(
        directory: &Path,
        is_watched: impl Fn(&Path) -> bool + Send + 'static,
    ) -> notify::Result<Self> {
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // An error, such as lost events, is a reason to look, too. Reads are none.
            let is_nothing = |event: Event| {
                let is_other = |path: &PathBuf| !is_watched(path);
                matches!(event.kind, EventKind::Access(_))
                    || !event.paths.is_empty() && event.paths.iter().all(is_other)
            };
            if event.is_ok_and(is_nothing) {
                return;
            }
            wake.notify_one();
        })?;
        watcher.watch(directory, RecursiveMode::NonRecursive)?;
        Ok(Self {
            changed,
            _watcher: watcher,
        })
    }

    /// Waits for a change of any name in the directory, or of the directory itself, since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
