//! In-flight operations of this process. To other processes, and to recovery, they look like leftovers of a killed
//! process.

use crate::host::lock;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

/// The number of in-flight operations for each name.
type Counts = Mutex<HashMap<String, usize>>;

/// Volumes being created, by name, and devices being changed, by UUID.
#[derive(Debug, Default)]
pub struct InFlight(Arc<Counts>);

/// An in-flight operation; it ends when this value is dropped.
#[derive(Debug)]
pub struct InFlightGuard {
    what: String,
    counts: Arc<Counts>,
}

impl InFlight {
    /// Registers an in-flight operation.
    pub fn take(&self, what: impl Into<String>) -> InFlightGuard {
        let what = what.into();
        let mut counts = lock(&self.0);
        *counts.entry(what.clone()).or_default() += 1;
        InFlightGuard {
            what,
            counts: Arc::clone(&self.0),
        }
    }

    /// Registers an in-flight operation, unless there is one for this name already.
    pub fn take_alone(&self, what: impl Into<String>) -> Option<InFlightGuard> {
        let what = what.into();
        let mut counts = lock(&self.0);
        if counts.contains_key(&what) {
            return None;
        }
        counts.insert(what.clone(), 1);
        drop(counts);
        Some(InFlightGuard {
            what,
            counts: Arc::clone(&self.0),
        })
    }

    /// Returns true if an operation for this name is in flight.
    pub fn has(&self, what: &str) -> bool {
        let counts = lock(&self.0);
        counts.contains_key(what)
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&self.what) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_in_flight_until_the_last_one_lets_go() {
        let in_flight = InFlight::default();
        let first = in_flight.take("a");
        let second = in_flight.take("a");
        assert!(in_flight.has("a") && !in_flight.has("b"));
        drop(first);
        assert!(in_flight.has("a"));
        drop(second);
        assert!(!in_flight.has("a"));
        let alone = in_flight.take_alone("a").unwrap();
        assert!(in_flight.take_alone("a").is_none());
        drop(alone);
        assert!(in_flight.take_alone("a").is_some());
    }
}
