//! Changes run to their end, whatever becomes of their caller.

use std::{future::Future, panic};

use tokio_util::task::TaskTracker;

use super::locks::{Hold, Locks};
use crate::{Error, Kind, Result};

/// Runs changes: each in a task of its own that owns its locks.
#[derive(Debug, Default)]
pub(super) struct Changes {
    locks: Locks,
    tasks: TaskTracker,
}

impl Changes {
    /// Takes `holds` and runs `change` to its end. A caller that goes away neither stops it nor frees its locks.
    ///
    /// # Errors
    /// [`Kind::Busy`] when an object is held, or when the agent is shutting down; else what `change` returns.
    pub(super) async fn run<T, F>(&self, holds: Vec<Hold>, change: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        if self.tasks.is_closed() {
            return Err(Error::new(Kind::HalfDone, "the agent is shutting down"));
        }
        let guard = self.locks.take(holds)?;
        let task = self.tasks.spawn(async move {
            let result = change.await;
            drop(guard);
            result
        });
        match task.await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(cause) => panic::resume_unwind(cause),
                Err(error) => Err(Error::new(Kind::HalfDone, "change was stopped").because(error)),
            },
        }
    }

    /// Takes no new changes and waits for the running ones.
    pub(super) async fn shut_down(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
