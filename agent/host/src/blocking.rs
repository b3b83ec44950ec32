//! Runs blocking work outside of the async worker threads.
//!
//! tokio has 512 blocking threads, and also gives one of them to a worker whose task blocks in place, as tasks of the
//! reconciler do. If all of them waited for an unresponsive disk, the agent could not answer any call. So most work is
//! limited to a part of them.

use tokio::sync::Semaphore;
use tracing::Span;

use crate::{
    Error, Kind, Result,
    trace::{self, Wait},
};

/// Maximum number of threads for work that may wait for disks. The remaining threads are for work that must not wait.
const MOST: usize = 384;

static FREE: Semaphore = Semaphore::const_new(MOST);

/// Runs `work` on a blocking thread. Once started it runs to completion, even if the caller is cancelled.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    blocking_within(&FREE, work).await
}

/// Like [`blocking`], but not limited: for work that must not wait for others, such as that of Probe. Callers must
/// limit its amount.
pub async fn blocking_at_once<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    on_a_thread(trace::wait(Wait::Thread), work).await
}

/// The thread works for the current span, and ends the wait for it.
async fn on_a_thread<T: Send + 'static>(
    wait: Span,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let caller = Span::current();
    let work = move || {
        drop(wait);
        caller.in_scope(work)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(cause) => std::panic::resume_unwind(cause),
            Err(error) => {
                Err(Error::new(Kind::HalfDone, "the operation was cancelled").because(error))
            }
        },
    }
}

async fn blocking_within<T: Send + 'static>(
    free: &'static Semaphore,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let wait = trace::wait(Wait::Thread);
    // The semaphore is never closed.
    let permit = free.acquire().await;
    // The thread keeps the permit until it has finished, even if the caller was cancelled.
    on_a_thread(wait, move || {
        let _permit = permit;
        work()
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Receiver, Sender, channel},
        time::Duration,
    };

    use super::*;

    /// Work that goes on until something is sent, or the sender dropped.
    fn stalled() -> (Sender<()>, impl FnOnce() -> Result<()> + Send + 'static) {
        let (end, ended): (_, Receiver<()>) = channel();
        (end, move || {
            let _ = ended.recv();
            Ok(())
        })
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_keeps_its_place_until_it_ends() {
        static ONE: Semaphore = Semaphore::const_new(1);
        const SHORT: Duration = Duration::from_millis(50);
        let (end, work) = stalled();
        let given_up = tokio::time::timeout(SHORT, blocking_within(&ONE, work)).await;
        assert!(given_up.is_err());
        let next = blocking_within(&ONE, || Ok(()));
        assert!(tokio::time::timeout(SHORT, next).await.is_err());
        blocking_at_once(|| Ok(())).await.unwrap();
        drop(end);
        blocking_within(&ONE, || Ok(())).await.unwrap();
    }
}
