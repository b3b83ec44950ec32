//! Watching the state of the device classes.
//!
//! **Invariant:** while nothing happens, nothing is read and no timer runs. A reading follows an operation of this agent
//! that has ended, a Probe that finds other problems than the one before, and calls that come anyway: Probe (the drift
//! check sends one every ten minutes, kubelet one for each readiness probe) and `NodeGetVolumeStats` (kubelet asks every
//! minute about the volumes in use, and only those can fill a thin pool). Only while a class is not ready is it read
//! again after [`TROUBLE`].
//!
//! One reading serves all watchers, and there is at most one in [`PAUSE`].

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::classes::ClassState;
use crate::ops::{
    Operations,
    changes::{ChangeCount, CountedWhenDropped},
};
use crate::{Error, Kind, Result, host::fail::time_lapse};

/// Minimum time between the beginnings of two readings, however many watchers there are.
const PAUSE: Duration = Duration::from_secs(1);
/// The age of a reading from which a call that comes anyway leads to the next one.
const OLD: Duration = Duration::from_mins(1);
/// Time between two readings while a class is not ready.
const TROUBLE: Duration = Duration::from_secs(30);

/// What the watchers of the classes share.
#[derive(Debug)]
pub(crate) struct ClassReadings {
    /// What may have changed the classes.
    changes: ChangeCount,
    /// The last reading; locked during the next one.
    last: tokio::sync::Mutex<Option<Reading>>,
    ended: CancellationToken,
}

/// The states of the classes, as they were read at once.
#[derive(Debug, Clone)]
struct Reading {
    /// The number of changes before it.
    changes: u64,
    begun: Instant,
    states: Arc<[ClassState]>,
}

impl ClassReadings {
    /// No reading yet; these changes lead to readings.
    pub(crate) fn after(changes: ChangeCount) -> Self {
        Self {
            changes,
            last: tokio::sync::Mutex::default(),
            ended: CancellationToken::new(),
        }
    }

    /// What may have changed the classes.
    pub(crate) fn changes(&self) -> &ChangeCount {
        &self.changes
    }

    /// Notes that the classes may have changed.
    pub(crate) fn note_change(&self) {
        self.changes.add();
    }

    /// Notes a change when the returned value is dropped.
    pub(crate) fn count_when_ended(&self) -> CountedWhenDropped {
        self.changes.add_when_dropped()
    }

    /// Notes a call that comes anyway: others may have changed the classes since the last reading.
    pub(crate) fn note_call(&self) {
        // A reading in progress is new enough.
        let Ok(last) = self.last.try_lock() else {
            return;
        };
        if last
            .as_ref()
            .is_some_and(|last| last.begun.elapsed() >= time_lapse(OLD))
        {
            self.changes.add();
        }
    }

    /// Ends all watches.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }
}

impl Reading {
    fn is_news_after(&self, known: &[ClassState]) -> bool {
        let mut pairs = self.states.iter().zip(known);
        self.states.len() != known.len() || pairs.any(|(state, known)| state.is_news_after(known))
    }

    fn is_in_trouble(&self) -> bool {
        self.states.iter().any(ClassState::is_in_trouble)
    }
}

/// The states of all classes as they change.
#[derive(Debug)]
pub struct ClassWatch {
    operations: Arc<Operations>,
    interval: Duration,
    /// The last reading, and when it was there.
    read: Option<(Reading, Instant)>,
    /// The states that were returned last.
    known: Option<Arc<[ClassState]>>,
}

impl Operations {
    /// Which classes this node has is known.
    ///
    /// # Errors
    /// [`Kind::Silent`] as long as the labels of the node are missing that a class selects: it could still get that class.
    pub fn check_decided(&self) -> Result<()> {
        match &self.classes.now().undecided {
            Some(why) => Err(Error::new(Kind::Silent, why.as_str())),
            None => Ok(()),
        }
    }

    /// Watches the states of all classes, with at least this time between two of them.
    pub fn watch_classes(self: &Arc<Self>, interval: Duration) -> ClassWatch {
        ClassWatch {
            operations: Arc::clone(self),
            interval,
            read: None,
            known: None,
        }
    }

    /// The classes as they were after all changes so far, and at the earliest `since`.
    async fn read_classes(&self, since: Instant) -> Reading {
        let ClassReadings { changes, last, .. } = &self.readings;
        let wanted = changes.now();
        let mut last = last.lock().await;
        if let Some(reading) = &*last {
            if reading.changes >= wanted && reading.begun >= since {
                return reading.clone();
            }
            sleep_until(reading.begun + PAUSE).await;
        }
        let reading = Reading {
            changes: changes.now(),
            begun: Instant::now(),
            states: self.class_states().await,
        };
        tracing::debug!(
            elapsed_ms = reading.begun.elapsed().as_millis(),
            "classes read"
        );
        *last = Some(reading.clone());
        reading
    }
}

impl ClassWatch {
    /// The states: at once at the first call, then when they have changed; none when the agent stops.
    pub async fn next(&mut self) -> Option<Arc<[ClassState]>> {
        let ended = self.operations.readings.ended.clone();
        ended.run_until_cancelled(self.news()).await
    }

    async fn news(&mut self) -> Arc<[ClassState]> {
        loop {
            let since = self.wait().await;
            let reading = self.operations.read_classes(since).await;
            let (reading, _) = self.read.insert((reading, Instant::now()));
            let known = self.known.as_ref();
            if known.is_none_or(|known| reading.is_news_after(known)) {
                return Arc::clone(self.known.insert(Arc::clone(&reading.states)));
            }
        }
    }

    /// Waits until the classes must be read. Returns the earliest reading that will do.
    async fn wait(&self) -> Instant {
        let Some((reading, read)) = &self.read else {
            // One that was begun just now is as good as another.
            let now = Instant::now();
            return now.checked_sub(PAUSE).unwrap_or(now);
        };
        let more = self.operations.readings.changes.more_than(reading.changes);
        let mut since = reading.begun;
        if reading.is_in_trouble() {
            let again = reading.begun + time_lapse(TROUBLE);
            if timeout_at(again, more).await.is_err() {
                since = again;
            }
        } else {
            more.await;
        }
        sleep_until(*read + self.interval).await;
        since
    }
}
