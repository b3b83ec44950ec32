//! When to look at the directory again.
//!
//! Events only say that something happened: which file they name, and what they say was done to it, is not to be
//! relied on once a link was swapped. So any event leads to a look at everything, after a moment of quiet.

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

/// Which events matter: all within the directory, and on the way to it only those of the next step.
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
    /// What watches `path`, whether it exists or not, once it is told to [follow](Self::follow) it: that may wait for a disk.
    /// Without inotify it polls, and says so.
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

/// Whether something was changed: reading a directory is an event too, and would wake us for ever.
fn is_change(event: &Event) -> bool {
    event.need_rescan()
        || match event.kind {
            EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
            _ => true,
        }
}

/// The steps that lead to `path`: every part of it, and of what the links on the way lead to, in the directory where it really
/// is. Whoever swaps one of them makes the path lead elsewhere. Where the way ends before it, the missing part is the last.
fn steps(path: &Path) -> Vec<PathBuf> {
    let mut here = PathBuf::from("/");
    let mut steps = Vec::new();
    let mut left: Vec<OsString> = reversed(path);
    // The kernel follows at most 40.
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

/// The parts of a path, the last one first; where it begins is not among them.
fn reversed(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

/// What is to be watched: the directory itself, and what holds each step on the way to it.
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
