//! When to look at the directory again.
//!
//! Events only say that something happened: which file they name, and what they say was done to it, is not to be
//! relied on once a link was swapped. So any event leads to a look at everything, after a moment of quiet.

use std::{
    collections::{BTreeSet, HashSet},
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout_at},
};

/// So long nothing may happen before the directory is looked at.
const QUIET: Duration = Duration::from_millis(300);
/// So long it is waited for quiet at most.
const PATIENCE: Duration = Duration::from_secs(2);
/// So often it is looked at without any event: network file systems send none.
const POLL: Duration = Duration::from_secs(30);
/// So soon it is looked at again when a file was being written.
const UNSETTLED: Duration = Duration::from_secs(1);

/// Watches a directory, the links that lead to it, and what holds those.
pub(crate) struct Watch {
    path: PathBuf,
    changed: Arc<Notify>,
    filter: Arc<Mutex<Filter>>,
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<(PathBuf, u64, u64)>,
    is_polling: AtomicBool,
}

/// Which events matter: all within the directory, and in what holds it only those of its own name.
#[derive(Debug, Default)]
struct Filter {
    within: HashSet<PathBuf>,
    names: HashSet<OsString>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// Begins to watch `path`, whether it exists or not. Without inotify it polls, and says so.
    pub(crate) fn new(path: &Path) -> Self {
        let changed = Arc::new(Notify::new());
        let filter = Arc::new(Mutex::new(Filter::default()));
        let (wake, matters) = (Arc::clone(&changed), Arc::clone(&filter));
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            let matters = matters.lock().unwrap_or_else(PoisonError::into_inner);
            if event
                .as_ref()
                .map_or(true, |event| is_change(event) && matters.about(event))
            {
                wake.notify_one();
            }
        });
        let mut watch = Self {
            path: path.to_owned(),
            changed,
            filter,
            watcher: None,
            watched: BTreeSet::new(),
            is_polling: AtomicBool::new(false),
        };
        match watcher {
            Ok(watcher) => watch.watcher = Some(watcher),
            Err(error) => watch.poll_instead(&error),
        }
        watch.follow();
        watch
    }

    /// Waits until there is a reason to look: an event and then quiet, or the poll.
    pub(crate) async fn wait(&self, is_unsettled: bool) {
        let pause = if is_unsettled { UNSETTLED } else { POLL };
        if timeout_at(Instant::now() + pause, self.changed.notified())
            .await
            .is_err()
        {
            return;
        }
        let end = Instant::now() + PATIENCE;
        loop {
            let quiet = (Instant::now() + QUIET).min(end);
            if timeout_at(quiet, self.changed.notified()).await.is_err() {
                return;
            }
            if Instant::now() >= end {
                sleep_until(end).await;
                return;
            }
        }
    }

    /// Who wakes this has the directory looked at.
    pub(crate) fn waker(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Watches what the path leads to now. To be called after each look: a link may have been swapped since.
    pub(crate) fn follow(&mut self) {
        let wanted = places(&self.path);
        {
            let mut filter = self.filter.lock().unwrap_or_else(PoisonError::into_inner);
            filter.within = fs::canonicalize(&self.path)
                .into_iter()
                .chain([self.path.clone()])
                .collect();
            filter.names = hops(&self.path)
                .iter()
                .filter_map(|hop| hop.file_name().map(ToOwned::to_owned))
                .collect();
        }
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        if wanted == self.watched {
            return;
        }
        let mut trouble = None;
        for (path, ..) in self.watched.difference(&wanted) {
            // A directory that is gone took its watch along.
            let _ = watcher.unwatch(path);
        }
        for (path, ..) in wanted.difference(&self.watched) {
            if let Err(error) = watcher.watch(path, RecursiveMode::NonRecursive) {
                trouble = Some(error);
            }
        }
        self.watched = wanted;
        if let Some(error) = trouble {
            self.poll_instead(&error);
        }
        // What happened between the look and the watch is seen by the next look.
        self.changed.notify_one();
    }

    fn poll_instead(&self, error: &notify::Error) {
        if !self.is_polling.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                source = %self.path.display(),
                error = %error,
                "directory cannot be watched; it is looked at every 30 seconds"
            );
        }
    }
}

impl Filter {
    fn about(&self, event: &Event) -> bool {
        event.need_rescan()
            || event.paths.is_empty()
            || event.paths.iter().any(|path| {
                path.parent()
                    .is_some_and(|parent| self.within.contains(parent))
                    || self.within.contains(path)
                    || path
                        .file_name()
                        .is_some_and(|name| self.names.contains(name))
            })
    }
}

/// Whether something was changed: reading a directory is an event too, and would wake us for ever.
fn is_change(event: &Event) -> bool {
    event.need_rescan()
        || match event.kind {
            EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
            _ => true,
        }
}

/// The paths that lead from `path` over links to a directory, each link and the end of it.
fn hops(path: &Path) -> Vec<PathBuf> {
    let mut hops = vec![path.to_owned()];
    let mut here = path.to_owned();
    // The kernel follows at most 40.
    for _ in 0..40 {
        let Ok(target) = fs::read_link(&here) else {
            break;
        };
        here = here.parent().unwrap_or(Path::new("/")).join(target);
        hops.push(here.clone());
    }
    hops
}

/// What is to be watched: the directory itself, and what holds each link that leads to it.
fn places(path: &Path) -> BTreeSet<(PathBuf, u64, u64)> {
    let identity = |path: &Path| -> io::Result<(PathBuf, u64, u64)> {
        let path = fs::canonicalize(path)?;
        let metadata = fs::metadata(&path)?;
        Ok((path, metadata.dev(), metadata.ino()))
    };
    let mut places = BTreeSet::new();
    places.extend(identity(path));
    for hop in hops(path) {
        let mut parent = hop.parent();
        // Where even the parent is missing, the nearest that is there tells when it comes.
        while let Some(directory) = parent {
            if let Ok(place) = identity(directory) {
                places.insert(place);
                break;
            }
            parent = directory.parent();
        }
    }
    places
}

#[cfg(test)]
mod tests;
