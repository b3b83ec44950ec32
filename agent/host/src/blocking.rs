//! Work that blocks a thread, off the threads that answer calls.
//!
//! tokio has 512 threads for that, and gives one of them to a worker whose task blocks in place, as the reconciler's do:
//! were all of them waiting for a disk, nothing would be answered any more. So most work may have a part of them only.

use tokio::sync::Semaphore;

use crate::{Error, Kind, Result};

/// So much work may wait for disks at a time. The rest of the threads is for what must go on meanwhile.
const MOST: usize = 384;

static FREE: Semaphore = Semaphore::const_new(MOST);

/// Runs `work` on a thread where blocking is allowed. Once begun it runs to its end, whatever becomes of the caller.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    blocking_within(&FREE, work).await
}

/// The same for work that must not wait for others, such as what a Probe does. There is little of it at a time: the
/// caller sees to that.
pub async fn blocking_at_once<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
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
    // It is never closed.
    let permit = free.acquire().await;
    // The thread keeps it until it is done, even when nobody waits for it any more.
    blocking_at_once(move || {
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
