//! Namespaces in which something has changed, until they are looked at.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::{Instant, sleep_until};

/// Changes that come together are looked at together.
const TOGETHER: Duration = Duration::from_millis(50);
/// The longest that a change waits for others: where something changes all the time, too, it is looked at.
const PATIENCE: Duration = Duration::from_secs(1);

/// The namespaces, and when they are looked at.
#[derive(Debug, Default)]
pub(super) struct Changed {
    namespaces: BTreeSet<String>,
    /// When the first of them came.
    since: Option<Instant>,
    /// When the last of them came.
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

    /// Waits until no more come, or they have waited for long; for ever where there are none.
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

        // What stands alone does not wait for long, and nothing is nothing.
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
