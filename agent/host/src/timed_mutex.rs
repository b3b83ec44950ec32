//! Serializes work, without letting callers wait for work that is stuck.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tracing::Instrument;

use crate::{
    lock,
    trace::{self, Wait},
};

/// A gate that lets one caller pass at a time, and knows since when it is occupied.
#[derive(Debug)]
pub struct TimedMutex {
    turn: Arc<tokio::sync::Mutex<()>>,
    since: Arc<Mutex<Option<Instant>>>,
    patience: Duration,
}

/// A caller is in the gate, until this value is dropped.
#[derive(Debug)]
pub struct Occupied(Arc<Mutex<Option<Instant>>>);

impl TimedMutex {
    /// A gate that counts as stuck when it is occupied for longer than this.
    pub fn new(patience: Duration) -> Self {
        Self {
            turn: Arc::default(),
            since: Arc::default(),
            patience,
        }
    }

    /// Does some work in its turn; none when it, or the work before it, is stuck. Work that has begun runs to
    /// completion, and blocks the gate until then.
    pub async fn pass<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let wait = trace::wait(Wait::Lock);
        let mut turn = std::pin::pin!(Arc::clone(&self.turn).lock_owned());
        let turn = loop {
            // The first check of `since` may be too early; then the next one follows soon enough.
            if let Ok(turn) = tokio::time::timeout(self.left(), &mut turn).await {
                break turn;
            }
            if self.is_stuck() {
                return None;
            }
        };
        drop(wait);
        let begun = self.begin();
        let work = async move {
            let result = work.await;
            drop((begun, turn));
            result
        };
        let task = tokio::spawn(work.in_current_span());
        match tokio::time::timeout(self.patience, task).await {
            Ok(Ok(result)) => Some(result),
            Ok(Err(error)) => match error.try_into_panic() {
                Ok(cause) => std::panic::resume_unwind(cause),
                Err(_) => None,
            },
            Err(_) => None,
        }
    }

    /// Marks the gate as occupied.
    pub fn begin(&self) -> Occupied {
        *lock(&self.since) = Some(Instant::now());
        Occupied(Arc::clone(&self.since))
    }

    /// Counts from now on how long the gate is occupied: one part of the work is done, and the next one begins.
    pub fn progress(&self) {
        let mut since = lock(&self.since);
        *since = since.map(|_| Instant::now());
    }

    /// Returns true if the gate has been occupied for longer than its limit, without progress.
    pub fn is_stuck(&self) -> bool {
        let since = *lock(&self.since);
        since.is_some_and(|since| since.elapsed() >= self.patience)
    }

    /// The time to wait before checking again.
    fn left(&self) -> Duration {
        let since = *lock(&self.since);
        since.map_or(self.patience, |since| {
            self.patience.saturating_sub(since.elapsed())
        })
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        *lock(&self.0) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_stuck_is_waited_for_once_and_lets_others_pass_when_it_ends() {
        let gate = TimedMutex::new(Duration::from_millis(500));
        assert_eq!(gate.pass(async { 1 }).await, Some(1));
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        assert_eq!(gate.pass(ended).await, None);
        let begun = Instant::now();
        assert_eq!(gate.pass(async { 2 }).await, None);
        assert!(
            begun.elapsed() < Duration::from_millis(400),
            "it waits again"
        );
        end.send(()).unwrap();
        while gate.is_stuck() {
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.pass(async { 3 }).await, Some(3));
    }

    #[test]
    fn work_of_many_parts_is_stuck_when_one_of_them_is() {
        let gate = TimedMutex::new(Duration::from_millis(200));
        gate.progress();
        assert!(!gate.is_stuck(), "nothing runs");
        let occupied = gate.begin();
        std::thread::sleep(Duration::from_millis(250));
        assert!(gate.is_stuck());
        gate.progress();
        assert!(!gate.is_stuck());
        std::thread::sleep(Duration::from_millis(250));
        assert!(gate.is_stuck());
        drop(occupied);
        assert!(!gate.is_stuck());
    }

    #[tokio::test]
    async fn a_long_queue_is_not_stuck() {
        let gate = Arc::new(TimedMutex::new(Duration::from_secs(1)));
        let all = (0..30).map(|number| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move {
                let work = async move {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    number
                };
                gate.pass(work).await
            })
        });
        for one in all.collect::<Vec<_>>() {
            assert!(one.await.unwrap().is_some());
        }
    }
}
