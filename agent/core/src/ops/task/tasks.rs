//! Operations run to completion even if their caller disconnects.

use std::{
    future::Future,
    panic,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

use crate::ops::{
    changes::ChangeCount,
    class::Classes,
    locks::{LockGuard, LockMode, Locked, Locks},
};
use crate::{
    Error, Kind, Result,
    host::{
        lock,
        trace::{self, Wait},
    },
    types::ImageId,
};

/// Timeout for joining an in-flight operation: shorter than the usual deadlines of callers, so that they get a progress
/// message.
const PATIENCE: Duration = Duration::from_secs(8);
/// Pause of work in the background while another operation has its image.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs operations, each in its own task that owns its locks.
#[derive(Debug)]
pub(crate) struct Tasks {
    classes: Arc<Classes>,
    locks: Locks,
    tracker: TaskTracker,
    /// Those in flight by the time at which they began, the last ones last: see [`Self::until_begun_before_end`].
    begun: Mutex<Vec<TaskTracker>>,
    ended: ChangeCount,
}

impl Tasks {
    /// Operations on these classes. Each that has ended is counted, whatever became of it.
    pub(crate) fn new(classes: Arc<Classes>, ended: ChangeCount) -> Self {
        Self {
            classes,
            locks: Locks::default(),
            tracker: TaskTracker::new(),
            begun: Mutex::new(vec![TaskTracker::new()]),
            ended,
        }
    }

    /// Takes the locks `holds` and runs `change` to completion. A caller that disconnects neither cancels it nor
    /// releases its locks.
    ///
    /// # Errors
    /// [`Kind::Busy`] if an object is locked, [`Kind::HalfDone`] if the agent is shutting down; else the errors of
    /// `change`.
    pub(crate) fn run<T, F>(
        &self,
        holds: Vec<LockMode>,
        change: F,
    ) -> impl Future<Output = Result<T>> + Send
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        // Boxed to keep the futures of the callers small.
        let change = Box::pin(change);
        let holding = |guard: LockGuard| async move {
            let result = change.await;
            drop(guard);
            result
        };
        self.run_holding(holds, holding)
    }

    /// Runs `change` once no other operation has an image: for work in the background, which has no caller that repeats it.
    ///
    /// # Errors
    /// Those of `change`, and [`Kind::HalfDone`] if the agent is shutting down.
    pub(crate) async fn run_once_free<T, F>(
        &self,
        id: ImageId,
        change: impl Fn() -> F + Send,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        loop {
            match self.run(vec![LockMode::Exclusive(id)], change()).await {
                Err(error) if error.kind() == Kind::Busy => tokio::time::sleep(PAUSE).await,
                result => return result,
            }
        }
    }

    /// Like [`Self::run`], for an operation that releases locks early by itself.
    pub(crate) async fn run_holding<T, F>(
        &self,
        holds: Vec<LockMode>,
        change: impl FnOnce(LockGuard) -> F + Send,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let span = operation(&holds);
        let guard = self
            .locks
            .take(holds)
            .map_err(|locked| self.busy(&locked))?;
        self.spawn(Box::pin(change(guard)), span).await
    }

    /// Like [`Self::run_holding`], for long operations: a repeated call waits up to [`PATIENCE`] for the first one to
    /// complete.
    pub(crate) async fn join<T, F>(
        &self,
        holds: Vec<LockMode>,
        change: impl FnOnce(LockGuard) -> F + Send,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let deadline = Instant::now() + PATIENCE;
        let span = operation(&holds);
        let wait = span.in_scope(|| trace::wait(Wait::Lock));
        let joined = self.locks.join(holds, deadline).await;
        drop(wait);
        let guard = joined.map_err(|locked| self.busy(&locked))?;
        self.spawn(Box::pin(change(guard)), span).await
    }

    /// The error of an operation that another one keeps waiting: it has the progress of whatever object of both is worked
    /// on, such as a volume of a group.
    fn busy(&self, locked: &Locked) -> Error {
        let id = locked.id;
        let others = locked.asked.iter().map(|hold| match hold {
            LockMode::Exclusive(id) | LockMode::Shared(id) => *id,
        });
        let mut objects = std::iter::once(id).chain(others);
        let progress = objects.find_map(|id| {
            let mut classes = self.classes.iter();
            classes.find_map(|class| class.backend.progress(id))
        });
        let message = format!("another operation on {id} is in progress; repeat the call later");
        let error = Error::new(Kind::Busy, message);
        match progress {
            Some(progress) => error.because(progress),
            None => error,
        }
    }

    async fn spawn<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
        span: Span,
    ) -> Result<T> {
        if self.tracker.is_closed() {
            return Err(Error::new(
                Kind::HalfDone,
                "the agent is shutting down; repeat the call once it runs again",
            ));
        }
        let counted = self.ended.add_when_dropped();
        let begun = lock(&self.begun).last().map(TaskTracker::token);
        let change = async move {
            let _counted = (counted, begun);
            change.await
        };
        match self.tracker.spawn(change.instrument(span)).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(cause) => panic::resume_unwind(cause),
                Err(error) => {
                    Err(Error::new(Kind::HalfDone, "the operation was cancelled").because(error))
                }
            },
        }
    }

    /// Waits for the operations that are in flight now, not for those that begin meanwhile.
    pub(crate) async fn until_begun_before_end(&self) {
        let before = {
            let mut begun = lock(&self.begun);
            begun.retain(|tracker| !tracker.is_empty());
            let before = begun.clone();
            begun.push(TaskTracker::new());
            before
        };
        for tracker in before {
            tracker.close();
            tracker.wait().await;
        }
    }

    /// Returns true if no operation is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.tracker.is_empty()
    }

    /// Refuses new operations and waits for the in-flight ones; long ones stop at a point from which they can be
    /// resumed.
    pub(crate) async fn shut_down(&self) {
        self.tracker.close();
        for class in self.classes.iter() {
            class.backend.stop();
        }
        self.tracker.wait().await;
    }
}

/// The span of an operation that holds these locks, the one on its own object first.
fn operation(holds: &[LockMode]) -> Span {
    match holds.first() {
        Some(LockMode::Exclusive(id) | LockMode::Shared(id)) => trace::operation(id),
        None => trace::operation(&"nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_began_before_is_waited_for_and_what_began_later_is_not() {
        let tasks = Tasks::new(Arc::default(), ChangeCount::default());
        let tasks = &tasks;
        let sleeping = async |seconds| {
            let change = async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok(())
            };
            tasks.run(Vec::new(), change).await.unwrap();
        };
        let start = Instant::now();
        let passed = async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            tokio::join!(tasks.until_begun_before_end(), async {
                tasks.until_begun_before_end().await;
            });
            start.elapsed().as_secs()
        };
        let later = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            sleeping(100).await;
        };
        let (passed, (), (), ()) = tokio::join!(passed(), sleeping(5), sleeping(9), later);
        assert_eq!(passed, 9);
        assert_eq!(start.elapsed().as_secs(), 102);
    }
}
