//! Reservations: capacity of thin pools that is promised to volumes which are not created, or not extended, yet.
//! Concurrent requests see the same pool; without reservations all of them would fit.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use crate::{host::lock, metadata::GroupMetadata};

/// The future size of a volume in a pool, in bytes, and the reservations made before it.
#[derive(Debug, Clone)]
struct Reserved {
    pool: String,
    bytes: u64,
    ahead: Vec<(String, u64)>,
}

/// The reservations, by the volume's name.
type All = Mutex<HashMap<String, Reserved>>;

/// Reserved sizes of volumes of a group.
#[derive(Debug, Default)]
pub struct Reservations(Arc<All>);

/// A reservation; it ends when this value is dropped.
#[derive(Debug)]
pub struct Reservation {
    name: String,
    all: Arc<All>,
}

impl Reservations {
    /// Reserves the future size of a volume. To be called before the group is read in which room is looked for:
    /// earlier reservations are then either still registered, or visible in that group.
    pub fn claim(&self, pool: &str, name: String, bytes: u64) -> Reservation {
        let mut all = lock(&self.0);
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

    /// The bytes reserved before the volume `name` that the pool's volumes do not include yet.
    pub fn ahead_of(&self, name: &str, now: &GroupMetadata) -> u64 {
        let all = lock(&self.0);
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
        let mut all = lock(&self.all);
        all.remove(&self.name);
    }
}
