//! Room in thin pools that was promised to volumes which are not made, or not grown, yet. What is asked for at the same
//! time sees the same pool; without this all of it would fit.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::metadata::VolumeGroup;

/// How large a volume of a pool becomes, in bytes, and what was on its way before it.
#[derive(Debug, Clone)]
struct Reserved {
    pool: String,
    bytes: u64,
    ahead: Vec<(String, u64)>,
}

/// What is on its way, by the volume's name.
type All = Mutex<HashMap<String, Reserved>>;

/// Sizes that volumes of a group are to have.
#[derive(Debug, Default)]
pub(super) struct Reservations(Arc<All>);

/// One of those, until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    name: String,
    all: Arc<All>,
}

impl Reservations {
    /// Notes how large a volume is to be. To be asked for before the group is read that the room is looked for in: what
    /// was noted before is on its way, or in that group.
    pub(super) fn claim(&self, pool: &str, name: String, bytes: u64) -> Reservation {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = all
            .iter()
            .filter(|(_, wanted)| wanted.pool == pool)
            .map(|(name, wanted)| (name.clone(), wanted.bytes))
            .collect();
        let wanted = Reserved {
            pool: pool.to_owned(),
            bytes,
            ahead: others,
        };
        all.insert(name.clone(), wanted);
        Reservation {
            name,
            all: Arc::clone(&self.0),
        }
    }

    /// The bytes that were claimed before those of the volume `name`, and that the pool is not charged with yet.
    pub(super) fn ahead_of(&self, name: &str, now: &VolumeGroup) -> u64 {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = all.get(name).map_or(&[][..], |wanted| &wanted.ahead);
        let missing = ahead.iter().map(|(name, bytes)| {
            let there = now.volumes.get(name).map_or(0, |volume| now.bytes(volume));
            bytes.saturating_sub(there)
        });
        missing.fold(0, u64::saturating_add)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.name);
    }
}
