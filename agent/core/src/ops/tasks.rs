//! Changes run to their end, whatever becomes of their caller.

use std::{future::Future, panic, time::Duration};

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::{
    class::Class,
    locks::{LockGuard, LockMode, Locks},
};
use crate::{Error, Kind, Result, types::ImageId};

/// So long a caller waits for what runs already: shorter than the deadlines that callers are known to set, so that they
/// hear how far it is.
const PATIENCE: Duration = Duration::from_secs(8);

/// Runs changes: each in a task of its own that owns its locks.
#[derive(Debug)]
pub(super) struct Tasks {
    classes: Vec<Class>,
    locks: Locks,
    tracker: TaskTracker,
}

impl Tasks {
    /// Changes of what is in these classes.
    pub(super) fn new(classes: Vec<Class>) -> Self {
        Self {
            classes,
            locks: Locks::default(),
            tracker: TaskTracker::new(),
        }
    }

    /// Takes `holds` and runs `change` to its end. A caller that goes away neither stops it nor frees its locks.
    ///
    /// # Errors
    /// [`Kind::Busy`] when an object is held, or when the agent is shutting down; else what `change` returns.
    pub(super) fn run<T, F>(
        &self,
        holds: Vec<LockMode>,
        change: F,
    ) -> impl Future<Output = Result<T>> + Send
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        // The futures of the callers stay small.
        let change = Box::pin(change);
        let holding = |guard: LockGuard| async move {
            let result = change.await;
            drop(guard);
            result
        };
        self.run_holding(holds, holding)
    }

    /// The same for a change that lets go itself of what it needs no longer.
    pub(super) async fn run_holding<T, F>(
        &self,
        holds: Vec<LockMode>,
        change: impl FnOnce(LockGuard) -> F + Send,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let guard = self.locks.take(holds).map_err(|id| self.busy(id))?;
        self.spawn(Box::pin(change(guard))).await
    }

    /// The same for what may take long: a repeat waits a while for the first call to be done.
    pub(super) async fn join<T, F>(
        &self,
        holds: Vec<LockMode>,
        change: impl FnOnce(LockGuard) -> F + Send,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let deadline = Instant::now() + PATIENCE;
        let joined = self.locks.join(holds, deadline).await;
        let guard = joined.map_err(|id| self.busy(id))?;
        self.spawn(Box::pin(change(guard))).await
    }

    fn busy(&self, id: ImageId) -> Error {
        let mut classes = self.classes.iter();
        let progress = classes.find_map(|class| class.backend.progress(id));
        let progress = progress.map_or_else(String::new, |progress| format!(" ({progress})"));
        Error::new(
            Kind::Busy,
            format!("another operation on {id} is in progress{progress}; repeat the call later"),
        )
    }

    async fn spawn<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if self.tracker.is_closed() {
            return Err(Error::new(
                Kind::HalfDone,
                "the agent is shutting down; repeat the call once it runs again",
            ));
        }
        match self.tracker.spawn(change).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(cause) => panic::resume_unwind(cause),
                Err(error) => {
                    Err(Error::new(Kind::HalfDone, "the operation was cancelled").because(error))
                }
            },
        }
    }

    /// Takes no new changes and waits for the running ones; those that take long end where they can go on.
    pub(super) async fn shut_down(&self) {
        self.tracker.close();
        for class in &self.classes {
            class.backend.stop();
        }
        self.tracker.wait().await;
    }
}
