//! Which object is looked at next: one at a time each, several at once.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use drumlin_crd::ObjectKey;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Keys with the time at which each is due.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    due: BTreeMap<(Instant, u64), ObjectKey>,
    places: HashMap<ObjectKey, (Instant, u64)>,
    running: HashSet<ObjectKey>,
    next: u64,
}

impl Queue {
    /// Makes `key` due at `time`, or earlier if it was due earlier.
    pub(crate) fn add(&self, key: &ObjectKey, time: Instant) {
        let mut inner = self.lock();
        if let Some(place) = inner.places.get(key).copied() {
            if place.0 <= time {
                return;
            }
            inner.due.remove(&place);
        }
        inner.next += 1;
        let place = (time, inner.next);
        inner.due.insert(place, key.clone());
        inner.places.insert(key.clone(), place);
        drop(inner);
        self.wake.notify_one();
    }

    /// Waits for a key that is due and that nobody has; it is the caller's until [`Queue::done`].
    pub(crate) async fn next(&self) -> ObjectKey {
        loop {
            let (found, later) = self.take();
            if let Some(key) = found {
                // Another worker may have something to do as well.
                self.wake.notify_one();
                return key;
            }
            match later {
                Some(time) => {
                    tokio::select! {
                        () = sleep_until(time) => {}
                        () = self.wake.notified() => {}
                    }
                }
                None => self.wake.notified().await,
            }
        }
    }

    fn take(&self) -> (Option<ObjectKey>, Option<Instant>) {
        let mut inner = self.lock();
        let now = Instant::now();
        let mut later = None;
        let mut found = None;
        for (place, key) in &inner.due {
            if place.0 > now {
                later = Some(place.0);
                break;
            }
            if !inner.running.contains(key) {
                found = Some((*place, key.clone()));
                break;
            }
        }
        let Some((place, key)) = found else {
            return (None, later);
        };
        inner.due.remove(&place);
        inner.places.remove(&key);
        inner.running.insert(key.clone());
        (Some(key), None)
    }

    /// Gives a key back.
    pub(crate) fn done(&self, key: &ObjectKey) {
        self.lock().running.remove(key);
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn key(name: &str) -> ObjectKey {
        ObjectKey {
            kind: "Volume".into(),
            namespace: "db".into(),
            name: name.into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_time_counts_and_a_key_is_had_by_one_at_a_time() {
        let queue = Queue::default();
        let now = Instant::now();
        queue.add(&key("a"), now + Duration::from_secs(9));
        queue.add(&key("a"), now + Duration::from_secs(1));
        queue.add(&key("a"), now + Duration::from_secs(5));
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(now.elapsed().as_secs(), 1);
        queue.add(&key("a"), Instant::now());
        let none = tokio::time::timeout(Duration::from_mins(1), queue.next()).await;
        assert!(none.is_err(), "it is still being worked on");
        queue.done(&key("a"));
        assert_eq!(queue.next().await, key("a"));
    }
}
