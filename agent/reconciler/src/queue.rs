//! The work queue: one worker per object, several objects at once, fair between namespaces.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Mutex, MutexGuard, PoisonError},
};

use drumlin_crd::ObjectKey;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Number of workers.
pub(crate) const WORKERS: usize = 12;
/// Maximum number of workers for slow work, so that a mount after a boot finds a free worker.
const SLOW: usize = 10;
/// Maximum number of workers for one namespace.
const NAMESPACE: usize = 8;

/// The kind of work that an object needs, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Lane {
    /// A mount that existed before this boot, which its users wait for.
    Mount,
    /// A deletion, which frees capacity.
    Removal,
    /// All other work.
    Making,
}

impl Lane {
    const ALL: [Self; 3] = [Self::Mount, Self::Removal, Self::Making];
}

/// Keys with the time at which each is due.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Scheduled keys by due time, in the order in which they were added.
    due: BTreeMap<(Instant, u64), ObjectKey>,
    /// Due keys without a worker, by namespace.
    ready: HashMap<Lane, BTreeMap<String, BTreeMap<u64, ObjectKey>>>,
    places: HashMap<ObjectKey, QueueEntry>,
    running: HashMap<ObjectKey, Lane>,
    /// The namespace that was served last.
    last: HashMap<Lane, String>,
    next: u64,
}

/// The position of a waiting key.
#[derive(Debug, Clone, Copy)]
enum QueueEntry {
    Due(Instant, u64),
    Ready(Lane, u64),
}

impl Queue {
    /// Makes `key` due at `time`, or earlier if it was due earlier.
    pub(crate) fn add(&self, key: &ObjectKey, time: Instant) {
        self.lock().add(key, time);
        self.wake.notify_one();
    }

    /// Waits for a due key that no worker has; it belongs to the caller until [`Queue::done`].
    pub(crate) async fn next(&self, lane_of: impl Fn(&ObjectKey) -> Lane) -> ObjectKey {
        loop {
            let (found, later) = self.lock().take(&lane_of);
            if let Some(key) = found {
                // There may be work for another worker, too.
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

    /// The next key that is due now, if there is one; it belongs to the caller until [`Queue::done`].
    pub(crate) fn next_due(&self, lane_of: impl Fn(&ObjectKey) -> Lane) -> Option<ObjectKey> {
        self.lock().take(&lane_of).0
    }

    /// Returns a key.
    pub(crate) fn done(&self, key: &ObjectKey) {
        self.lock().running.remove(key);
        self.wake.notify_one();
    }

    /// True if no key is due now and no worker has one.
    pub(crate) fn is_idle(&self) -> bool {
        let inner = self.lock();
        let first = inner.due.first_key_value();
        let is_due = first.is_some_and(|((time, _), _)| *time <= Instant::now());
        let mut namespaces = inner.ready.values().flat_map(BTreeMap::values);
        !is_due && inner.running.is_empty() && namespaces.all(BTreeMap::is_empty)
    }

    /// Returns true if a worker has the key.
    pub(crate) fn is_running(&self, key: &ObjectKey) -> bool {
        self.lock().running.contains_key(key)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn add(&mut self, key: &ObjectKey, time: Instant) {
        let number = match self.places.get(key).copied() {
            Some(QueueEntry::Due(before, _)) if before <= time => return,
            Some(QueueEntry::Due(before, number)) => {
                self.due.remove(&(before, number));
                None
            }
            // The key keeps its position, but may need another kind of work by now.
            Some(QueueEntry::Ready(lane, number)) => {
                self.take_from(lane, &key.namespace, Some(number));
                Some(number)
            }
            None => None,
        };
        let (time, number) = if let Some(number) = number {
            (time.min(Instant::now()), number)
        } else {
            self.next += 1;
            (time, self.next)
        };
        self.due.insert((time, number), key.clone());
        self.places
            .insert(key.clone(), QueueEntry::Due(time, number));
    }

    /// Returns the next key, or the time at which one is due.
    fn take(
        &mut self,
        lane_of: &impl Fn(&ObjectKey) -> Lane,
    ) -> (Option<ObjectKey>, Option<Instant>) {
        let later = self.ready_what_is_due(lane_of);
        for lane in Lane::ALL {
            let slow = self.running.values().filter(|lane| **lane != Lane::Mount);
            if lane != Lane::Mount && slow.count() >= SLOW {
                break;
            }
            let Some(namespace) = self.turn(lane) else {
                continue;
            };
            let Some(key) = self.take_from(lane, &namespace, None) else {
                continue;
            };
            self.places.remove(&key);
            self.running.insert(key.clone(), lane);
            self.last.insert(lane, namespace);
            return (Some(key), None);
        }
        (None, later)
    }

    /// Moves due keys to the waiting list; returns the time at which the next one is due.
    fn ready_what_is_due(&mut self, lane_of: &impl Fn(&ObjectKey) -> Lane) -> Option<Instant> {
        let now = Instant::now();
        let mut later = None;
        let mut due = Vec::new();
        for (place, key) in &self.due {
            if place.0 > now {
                later = Some(place.0);
                break;
            }
            if !self.running.contains_key(key) {
                due.push(*place);
            }
        }
        for place in due {
            if let Some(key) = self.due.remove(&place) {
                let lane = lane_of(&key);
                self.places
                    .insert(key.clone(), QueueEntry::Ready(lane, place.1));
                let namespaces = self.ready.entry(lane).or_default();
                let waiting = namespaces.entry(key.namespace.clone()).or_default();
                waiting.insert(place.1, key);
            }
        }
        later
    }

    /// The next namespace in round-robin order that is below its limit of workers.
    fn turn(&self, lane: Lane) -> Option<String> {
        let namespaces = self.ready.get(&lane)?;
        let has_workers = |namespace: &str| {
            let running = self.running.keys();
            running.filter(|key| key.namespace == namespace).count() >= NAMESPACE
        };
        let last = self.last.get(&lane).map_or("", String::as_str);
        let after = namespaces.range::<str, _>((Bound::Excluded(last), Bound::Unbounded));
        let mut turns =
            after.chain(namespaces.range::<str, _>((Bound::Unbounded, Bound::Included(last))));
        let turn = turns.find(|(namespace, _)| !has_workers(namespace))?;
        Some(turn.0.clone())
    }

    /// Takes the key that has waited longest, or the one with this number, from the waiting list.
    fn take_from(&mut self, lane: Lane, namespace: &str, number: Option<u64>) -> Option<ObjectKey> {
        let namespaces = self.ready.get_mut(&lane)?;
        let waiting = namespaces.get_mut(namespace)?;
        let found = match number {
            Some(number) => waiting.remove(&number),
            None => waiting.pop_first().map(|(_, key)| key),
        };
        if waiting.is_empty() {
            namespaces.remove(namespace);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn key(name: &str) -> ObjectKey {
        of("db", name)
    }

    fn of(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey {
            kind: "Volume".into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The prefix of a name selects its lane.
    fn lane(key: &ObjectKey) -> Lane {
        match key.name.split('-').next() {
            Some("mount") => Lane::Mount,
            Some("removal") => Lane::Removal,
            _ => Lane::Making,
        }
    }

    /// The keys that free workers get now.
    async fn taken(queue: &Queue) -> Vec<String> {
        let mut taken = Vec::new();
        while taken.len() < WORKERS {
            let next = queue.next(lane);
            match tokio::time::timeout(Duration::from_millis(1), next).await {
                Ok(key) => taken.push(format!("{}/{}", key.namespace, key.name)),
                Err(_) => break,
            }
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_time_counts_and_a_key_is_had_by_one_at_a_time() {
        let queue = Queue::default();
        let now = Instant::now();
        queue.add(&key("a"), now + Duration::from_secs(9));
        queue.add(&key("a"), now + Duration::from_secs(1));
        queue.add(&key("a"), now + Duration::from_secs(5));
        assert_eq!(queue.next(lane).await, key("a"));
        assert_eq!(now.elapsed().as_secs(), 1);
        queue.add(&key("a"), Instant::now());
        let none = tokio::time::timeout(Duration::from_mins(1), queue.next(lane)).await;
        assert!(none.is_err(), "it is still being worked on");
        queue.done(&key("a"));
        assert_eq!(queue.next(lane).await, key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_with_very_many_objects_leaves_room_for_the_others() {
        let queue = Queue::default();
        let now = Instant::now();
        for number in 0..100 {
            queue.add(&of("tenant", &format!("clone-{number}")), now);
        }
        queue.add(&of("other", "clone"), now);
        let first = taken(&queue).await;
        let mut expected = vec!["other/clone".to_owned()];
        expected.extend((0..NAMESPACE).map(|number| format!("tenant/clone-{number}")));
        assert_eq!(first, expected);
        // A finished key frees a worker for its namespace.
        queue.done(&of("tenant", "clone-1"));
        assert_eq!(taken(&queue).await, ["tenant/clone-8"]);
    }

    #[tokio::test(start_paused = true)]
    async fn mounts_come_first_and_always_find_a_worker_and_removals_come_before_what_is_made() {
        let queue = Queue::default();
        let now = Instant::now();
        for namespace in ["a", "b", "c"] {
            for number in 0..9 {
                queue.add(&of(namespace, &format!("making-{number}")), now);
            }
        }
        let making = taken(&queue).await;
        assert_eq!(making.len(), SLOW);
        let turns: String = making.iter().map(|name| &name[..1]).collect();
        assert_eq!(turns, "abcabcabca");
        queue.add(&of("d", "making"), now);
        queue.add(&of("e", "removal"), now);
        queue.add(&of("f", "mount"), now);
        assert_eq!(taken(&queue).await, ["f/mount"]);
        queue.done(&of("a", "making-0"));
        assert_eq!(taken(&queue).await, ["e/removal"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_added_again_keeps_its_turn() {
        let queue = Queue::default();
        let now = Instant::now();
        queue.add(&of("a", "one"), now);
        queue.add(&of("a", "two"), now);
        queue.add(&of("b", "mount"), now);
        assert_eq!(queue.next(lane).await, of("b", "mount"));
        queue.add(&of("a", "one"), Instant::now());
        queue.add(&of("a", "one"), Instant::now() + Duration::from_mins(1));
        assert_eq!(taken(&queue).await, ["a/one", "a/two"]);
    }
}
