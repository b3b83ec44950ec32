//! Decides when to scan the directory again.
//!
//! An event only shows that something changed: its file name and kind are unreliable after a symbolic link was swapped.
//! So any event leads to a scan of the whole directory, after a debounce.

use std::{
    collections::{BTreeSet, HashSet},
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
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

/// Debounce: the quiet time before a scan.
const QUIET: Duration = Duration::from_millis(100);
/// Maximum debounce time.
const PATIENCE: Duration = Duration::from_secs(2);
/// Polling interval without events: network file systems send none.
pub(crate) const POLL: Duration = Duration::from_secs(30);
/// Delay before the next scan if a file was being written.
pub(crate) const UNSETTLED: Duration = Duration::from_secs(1);

/// Watches a directory, the symbolic links that lead to it, and their parent directories.
pub(crate) struct Watch {
    path: PathBuf,
    changed: Arc<Notify>,
    filter: Arc<Mutex<Filter>>,
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<(PathBuf, u64, u64)>,
    is_polling: AtomicBool,
}

/// The relevant events: all within the directory, and on the path to it only those of the next component.
#[derive(Debug, Default)]
struct Filter {
    within: HashSet<PathBuf>,
    steps: HashSet<PathBuf>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// Creates a watch of `path`, which need not exist, that starts with [follow](Self::follow): that may wait for a
    /// disk. Without inotify it polls, and logs that.
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
        watch
    }

    /// Waits for a reason to scan: a debounced event, or the end of this interval.
    pub(crate) async fn wait(&self, interval: Duration) {
        if timeout_at(Instant::now() + interval, self.changed.notified())
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

    /// Notify this to scan the directory.
    pub(crate) fn waker(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Watches the present target of the path. Must be called after each scan: a symbolic link may have been swapped.
    pub(crate) fn follow(&mut self) {
        let wanted = places(&self.path);
        {
            let mut filter = self.filter.lock().unwrap_or_else(PoisonError::into_inner);
            filter.within = fs::canonicalize(&self.path)
                .into_iter()
                .chain([self.path.clone()])
                .collect();
            filter.steps = steps(&self.path).into_iter().collect();
        }
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        if wanted == self.watched {
            return;
        }
        let mut trouble = None;
        for (path, ..) in self.watched.difference(&wanted) {
            // The kernel removes the watch of a deleted directory.
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
        // A change between the scan and the watch is found by the next scan.
        self.changed.notify_one();
    }

    fn poll_instead(&self, error: &notify::Error) {
        if !self.is_polling.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                source = %self.path.display(),
                error = %error,
                "directory cannot be watched; polling it every 30 seconds"
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
                    || self.steps.contains(path)
            })
    }
}

/// Returns true if something changed: reading a directory is an event too, and would cause endless scans.
fn is_change(event: &Event) -> bool {
    event.need_rescan()
        || match event.kind {
            EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
            _ => true,
        }
}

/// The components that lead to `path`: each part of it, and of the targets of symbolic links on the way, in the real
/// directory that contains it. Replacing any of them makes the path lead elsewhere. If a component is missing, it is
/// the last one.
fn steps(path: &Path) -> Vec<PathBuf> {
    let mut here = PathBuf::from("/");
    let mut steps = Vec::new();
    let mut left: Vec<OsString> = reversed(path);
    // The kernel follows at most 40 symbolic links.
    let mut links = 40;
    while let Some(part) = left.pop() {
        if part == ".." {
            here.pop();
            continue;
        }
        let step = here.join(&part);
        steps.push(step.clone());
        match fs::read_link(&step) {
            Ok(target) if links > 0 => {
                links -= 1;
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                left.extend(reversed(&target));
            }
            _ if step.is_dir() => here = step,
            _ => break,
        }
    }
    steps
}

/// The components of a path, last one first, without the root.
fn reversed(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

/// The directories to watch: the directory itself, and the parent of each component on the way to it.
fn places(path: &Path) -> BTreeSet<(PathBuf, u64, u64)> {
    let identity = |path: &Path| -> io::Result<(PathBuf, u64, u64)> {
        let path = fs::canonicalize(path)?;
        let metadata = fs::metadata(&path)?;
        Ok((path, metadata.dev(), metadata.ino()))
    };
    let steps = steps(path);
    let parents = steps.iter().filter_map(|step| step.parent());
    let all = parents.chain([path]);
    all.filter_map(|directory| identity(directory).ok())
        .collect()
}

#[cfg(test)]
mod tests;
