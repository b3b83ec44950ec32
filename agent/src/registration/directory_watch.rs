//! Notices changes of the registration directory.
//!
//! **Invariant:** nothing runs while nothing changes there.

use std::{path::Path, sync::Arc};

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// A watch of one directory: of the names in it, and of the directory itself.
#[derive(Debug)]
pub(super) struct DirectoryWatch {
    changed: Arc<Notify>,
    _watcher: RecommendedWatcher,
}

impl DirectoryWatch {
    /// Watches `directory`.
    ///
    /// # Errors
    /// If it is missing, or the host has no inotify watch left.
    pub(super) fn begin(directory: &Path) -> notify::Result<Self> {
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // An error, such as lost events, is a reason to look, too. Kubelet's own reads are none.
            if event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
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
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}
