//! Long-running operations: their progress, and their end when the agent stops.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use crate::{host::lock, types::ImageId};

/// A long-running operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    /// Copies the bytes of a snapshot.
    Copying,
    /// Wipes the bytes of former volumes.
    Wiping,
    /// Rolls a volume back to one of its snapshots.
    RollingBack,
}

/// The kind, position and total of each operation, in bytes.
type All = Arc<Mutex<HashMap<ImageId, (Job, u64, u64)>>>;

/// The long-running operations in flight, and whether they must stop.
#[derive(Debug, Default)]
pub(super) struct Running {
    all: All,
    is_stopping: Arc<AtomicBool>,
}

/// One of these operations; it ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Progress {
    id: ImageId,
    all: All,
    is_stopping: Arc<AtomicBool>,
}

impl Running {
    /// Registers an operation over this number of bytes.
    pub(super) fn begin(&self, id: ImageId, what: Job, bytes: u64) -> Progress {
        let mut all = lock(&self.all);
        all.insert(id, (what, 0, bytes));
        Progress {
            id,
            all: Arc::clone(&self.all),
            is_stopping: Arc::clone(&self.is_stopping),
        }
    }

    /// The progress as text for people.
    pub(super) fn describe(&self, id: ImageId) -> Option<String> {
        let all = lock(&self.all);
        let (what, done, bytes) = all.get(&id)?;
        let what = match what {
            Job::Copying => "copying",
            Job::Wiping => "wiping",
            Job::RollingBack => "rolling back",
        };
        let part = done.saturating_mul(100) / bytes.max(&1);
        Some(format!("{what}, {part} % of {bytes} bytes"))
    }

    /// Stops all operations at their next step.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }
}

impl Progress {
    /// Reports the position in bytes; returns whether to continue, which is false after the time limit or when the
    /// agent stops.
    pub(super) fn tell(&self, at: u64, until: Instant) -> ControlFlow<()> {
        if self.goes_on(at) && Instant::now() < until {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    /// Reports the position in bytes; returns true unless the agent stops.
    pub(super) fn goes_on(&self, at: u64) -> bool {
        let mut all = lock(&self.all);
        if let Some((_, done, _)) = all.get_mut(&self.id) {
            *done = at;
        }
        !self.is_stopping.load(Ordering::Acquire)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut all = lock(&self.all);
        all.remove(&self.id);
    }
}
