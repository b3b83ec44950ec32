//! Debounces changed namespaces until they are checked.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::{Instant, sleep_until};

/// The quiet time after which changes are checked together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Maximum debounce time, for a namespace that changes all the time.
const PATIENCE: Duration = Duration::from_secs(1);

/// The changed namespaces, and the times of their changes.
#[derive(Debug, Default)]
pub(super) struct Changed {
    namespaces: BTreeSet<String>,
    /// The time of the first change.
    since: Option<Instant>,
    /// The time of the last change.
    last: Option<Instant>,
}

impl Changed {
    pub(super) fn add(&mut self, namespaces: Vec<String>) {
        if namespaces.is_empty() {
            return;
        }
        let now = Instant::now();
        self.since.get_or_insert(now);
        self.last = Some(now);
        self.namespaces.extend(namespaces);
    }

    /// Waits until no more changes come, or the maximum time is over; forever if there are none.
    pub(super) async fn settled(&self) {
        match (self.since, self.last) {
            (Some(since), Some(last)) => {
                sleep_until((last + TOGETHER).min(since + PATIENCE)).await;
            }
            _ => std::future::pending().await,
        }
    }

    pub(super) fn take(&mut self) -> BTreeSet<String> {
        std::mem::take(self).namespaces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_without_end_are_looked_at_all_the_same() {
        let mut changed = Changed::default();
        let begun = Instant::now();
        let mut more = tokio::time::interval(TOGETHER / 2);
        loop {
            tokio::select! {
                _ = more.tick() => changed.add(vec!["db".to_owned()]),
                () = changed.settled() => break,
            }
            assert!(begun.elapsed() <= 2 * PATIENCE);
        }
        assert!(begun.elapsed() >= PATIENCE);
        assert_eq!(changed.take(), BTreeSet::from(["db".to_owned()]));

        // A single change waits for the quiet time only, and without changes there is no result.
        let begun = Instant::now();
        changed.add(vec!["db".to_owned()]);
        changed.settled().await;
        assert_eq!(begun.elapsed(), TOGETHER);
        changed.take();
        changed.add(Vec::new());
        let nothing = tokio::time::timeout(2 * PATIENCE, changed.settled()).await;
        assert!(nothing.is_err());
    }
}
