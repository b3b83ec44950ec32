//! Returns the memory of a burst of calls to the host when no call has arrived for a while.
//!
//! **Invariant:** once the start is over, nothing runs and no timer is set while no call arrives.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use drumlin_core::host::heap;
use tokio::sync::Notify;

/// Idle time after which memory is returned.
const QUIET: Duration = Duration::from_secs(1);

/// Counter of answered calls.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls(Arc<Counted>);

#[derive(Debug, Default)]
struct Counted {
    answered: AtomicU64,
    more: Notify,
}

impl Calls {
    /// Counts an answered call.
    pub(crate) fn note(&self) {
        self.0.answered.fetch_add(1, Ordering::Relaxed);
        self.0.more.notify_one();
    }

    /// Returns memory after each burst of calls, until it is dropped.
    pub(crate) async fn trim_when_quiet(self) -> Infallible {
        // The start, and the first calls, use code that nothing uses later.
        self.settled().await;
        heap::release_program();
        self.until_quiet().await;
        heap::release_program();
        loop {
            heap::trim();
            self.until_quiet().await;
        }
    }

    /// Waits for a call, then until no call has arrived for the idle time.
    async fn until_quiet(&self) {
        self.0.more.notified().await;
        self.settled().await;
    }

    /// Waits until no call has arrived for the idle time.
    async fn settled(&self) {
        loop {
            let before = self.0.answered.load(Ordering::Relaxed);
            tokio::time::sleep(QUIET).await;
            if self.0.answered.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn it_is_quiet_once_after_the_last_of_some_calls_and_not_again_without_one() {
        let calls = Calls::default();
        let hour = Duration::from_hours(1);
        assert!(timeout(hour, calls.until_quiet()).await.is_err());
        let begun = Instant::now();
        calls.note();
        let noting = async {
            for _ in 0..10 {
                tokio::time::sleep(QUIET / 2).await;
                calls.note();
            }
        };
        tokio::join!(calls.until_quiet(), noting);
        assert!(begun.elapsed() >= QUIET * 6, "{:?}", begun.elapsed());
        // A call that is counted during the wait causes one more wait at most.
        let _ = timeout(2 * QUIET, calls.until_quiet()).await;
        assert!(timeout(hour, calls.until_quiet()).await.is_err());
    }
}
