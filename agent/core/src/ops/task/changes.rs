//! Counts the operations that have ended, and whatever else may have changed what classes hold.

use tokio::sync::watch;

/// The number of changes so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangeCount(watch::Sender<u64>);

/// Counts a change when it is dropped.
#[derive(Debug)]
pub(crate) struct CountedWhenDropped(ChangeCount);

impl ChangeCount {
    /// Counts a change.
    pub(crate) fn add(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// Counts a change when the returned value is dropped: also one that fails or panics.
    pub(crate) fn add_when_dropped(&self) -> CountedWhenDropped {
        CountedWhenDropped(self.clone())
    }

    /// The current number.
    pub(crate) fn now(&self) -> u64 {
        *self.0.borrow()
    }

    /// Waits until there are more than this number.
    pub(crate) async fn more_than(&self, known: u64) {
        // The sender is `self`, so the channel is open.
        let _ = self.0.subscribe().wait_for(|count| *count > known).await;
    }
}

impl Drop for CountedWhenDropped {
    fn drop(&mut self) {
        self.0.add();
    }
}
