//! Locks on objects, taken all or none. Only a call that joins an in-flight operation waits for them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::{sync::Notify, time::Instant};

use crate::{host::lock, types::ImageId};

/// Mode in which an object is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// Exclusive: one operation only.
    Exclusive(ImageId),
    /// Shared by any number of operations that only read the object, such as copies.
    Shared(ImageId),
}

/// The locks of this process, in memory only: after a crash no object is locked, and recovery reads interrupted
/// operations from disk.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    held: Arc<Mutex<HashMap<ImageId, Holders>>>,
    freed: Arc<Notify>,
}

#[derive(Debug, Clone, Copy)]
enum Holders {
    One,
    Readers(usize),
}

/// Holds locks on some objects until it is dropped.
#[derive(Debug)]
pub(crate) struct LockGuard {
    held: Arc<Mutex<HashMap<ImageId, Holders>>>,
    freed: Arc<Notify>,
    holds: Vec<LockMode>,
}

/// Why locks were not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Locked {
    /// The object that another operation has locked.
    pub(crate) id: ImageId,
    /// What was asked for.
    pub(crate) asked: Vec<LockMode>,
}

impl Locks {
    /// Takes all of `holds`, or none.
    pub(crate) fn take(&self, holds: Vec<LockMode>) -> Result<LockGuard, Locked> {
        let mut held = lock(&self.held);
        for hold in &holds {
            let (id, free) = match hold {
                LockMode::Exclusive(id) => (id, !held.contains_key(id)),
                LockMode::Shared(id) => (id, !matches!(held.get(id), Some(Holders::One))),
            };
            if !free {
                return Err(Locked {
                    id: *id,
                    asked: holds,
                });
            }
        }
        for hold in &holds {
            match hold {
                LockMode::Exclusive(id) => {
                    held.insert(*id, Holders::One);
                }
                LockMode::Shared(id) => {
                    let readers = held.entry(*id).or_insert(Holders::Readers(0));
                    if let Holders::Readers(count) = readers {
                        *count += 1;
                    }
                }
            }
        }
        Ok(LockGuard {
            held: Arc::clone(&self.held),
            freed: Arc::clone(&self.freed),
            holds,
        })
    }

    /// Like [`Locks::take`], but waits until `deadline` for the locks of other operations.
    pub(crate) async fn join(
        &self,
        mut holds: Vec<LockMode>,
        deadline: Instant,
    ) -> Result<LockGuard, Locked> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Registered before the attempt, so that no release is missed.
            freed.as_mut().enable();
            match self.take(holds) {
                Err(locked) if tokio::time::timeout_at(deadline, freed).await.is_err() => {
                    return Err(locked);
                }
                Err(locked) => holds = locked.asked,
                Ok(guard) => return Ok(guard),
            }
        }
    }
}

impl LockGuard {
    /// Releases all locks except the one on `id`.
    pub(crate) fn keep_only(&mut self, kept: ImageId) {
        let is_kept = |hold: &LockMode| *hold == LockMode::Exclusive(kept);
        let (kept, gone) = std::mem::take(&mut self.holds)
            .into_iter()
            .partition(is_kept);
        self.holds = kept;
        self.free(&gone);
    }

    fn free(&self, holds: &[LockMode]) {
        let mut held = lock(&self.held);
        for hold in holds {
            match hold {
                LockMode::Exclusive(id) => {
                    held.remove(id);
                }
                LockMode::Shared(id) => match held.get_mut(id) {
                    Some(Holders::Readers(count)) if *count > 1 => *count -= 1,
                    _ => {
                        held.remove(id);
                    }
                },
            }
        }
        drop(held);
        self.freed.notify_waiters();
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.free(&self.holds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ImageKind, Key, Name};

    fn id(name: &str) -> ImageId {
        let kind = ImageKind::Volume;
        ImageId {
            kind,
            key: Key::of(kind, &Name::parse("name", name).unwrap()),
        }
    }

    #[test]
    fn a_held_key_is_refused_at_once_and_free_afterwards() {
        let locks = Locks::default();
        let guard = locks.take(vec![LockMode::Exclusive(id("a"))]).unwrap();
        for hold in [LockMode::Exclusive(id("a")), LockMode::Shared(id("a"))] {
            let taken = locks.take(vec![LockMode::Exclusive(id("b")), hold]);
            assert_eq!(taken.unwrap_err().id, id("a"));
        }
        locks.take(vec![LockMode::Exclusive(id("b"))]).unwrap();
        drop(guard);
        locks.take(vec![LockMode::Exclusive(id("a"))]).unwrap();
    }

    #[test]
    fn readers_share_and_keep_writers_out_until_the_last_is_gone() {
        let locks = Locks::default();
        let first = locks.take(vec![LockMode::Shared(id("a"))]).unwrap();
        let second = locks.take(vec![LockMode::Shared(id("a"))]).unwrap();
        assert!(locks.take(vec![LockMode::Exclusive(id("a"))]).is_err());
        drop(first);
        assert!(locks.take(vec![LockMode::Exclusive(id("a"))]).is_err());
        drop(second);
        assert!(locks.take(vec![LockMode::Exclusive(id("a"))]).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_joins_waits_until_all_is_free_or_the_time_is_over() {
        let locks = Arc::new(Locks::default());
        let mut first = locks
            .take(vec![
                LockMode::Exclusive(id("a")),
                LockMode::Exclusive(id("source")),
            ])
            .unwrap();
        let deadline = Instant::now() + std::time::Duration::from_secs(10);
        let wanted = vec![LockMode::Exclusive(id("a"))];
        let late = locks.join(wanted.clone(), deadline).await;
        assert_eq!(late.unwrap_err().id, id("a"));
        first.keep_only(id("a"));
        locks.take(vec![LockMode::Exclusive(id("source"))]).unwrap();
        assert!(locks.take(wanted.clone()).is_err());
        let waiting = tokio::spawn({
            let locks = Arc::clone(&locks);
            let deadline = Instant::now() + std::time::Duration::from_secs(10);
            async move { locks.join(wanted, deadline).await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(first);
        assert!(waiting.await.unwrap());
    }
}
