//! The write locks of records. A lock is held from reading a record until it is written, which takes as long as a disk syncs.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard},
};

use drumlin_crd::ObjectKey;

use crate::{blocking::blocking, state::lock};

/// Number of locks: so many that those who write at once rarely share one.
const LOCKS: usize = 512;

/// Locks by object; an object always has the same one.
pub(crate) struct RecordLocks {
    locks: [Mutex<()>; LOCKS],
    hasher: RandomState,
}

impl Default for RecordLocks {
    fn default() -> Self {
        Self {
            locks: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
        }
    }
}

impl RecordLocks {
    /// Waits for the lock of an object.
    pub(crate) fn lock(&self, key: &ObjectKey) -> MutexGuard<'_, ()> {
        lock(self.of(key))
    }

    /// The same; only if somebody holds it the thread is given up for as long as that takes.
    pub(crate) fn lock_soon(&self, key: &ObjectKey) -> MutexGuard<'_, ()> {
        match self.of(key).try_lock() {
            Ok(locked) => locked,
            Err(_) => blocking(|| self.lock(key)),
        }
    }

    fn of(&self, key: &ObjectKey) -> &Mutex<()> {
        // Half of a hash is a number of every processor.
        let number = usize::try_from(self.hasher.hash_one(key) >> 32).unwrap_or_default();
        self.locks.get(number % LOCKS).unwrap_or(&OTHERS)
    }
}

/// Fallback that is never used: every remainder has its own lock, but the types do not show that.
static OTHERS: Mutex<()> = Mutex::new(());
