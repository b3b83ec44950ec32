//! A class of thin volumes: its pool, and what this process knows of it.

use std::{ops::Deref, sync::atomic::AtomicBool};

use tokio::sync::{Mutex, OnceCell};

use crate::backend::lvm::ThinPool;

/// The settings of the pool, with what is remembered between calls.
#[derive(Debug)]
pub(crate) struct ThinClass {
    pool: ThinPool,
    /// Set once the pool exists or was created: a pool that is removed manually is not created again.
    pub(crate) has_pool: OnceCell<()>,
    /// The recovery round of the group after which its pool was searched for orphan thin devices.
    pub(crate) looked_for_orphans: Mutex<u64>,
    /// Held by who reads the metadata of the pool: it has one metadata snapshot at a time.
    pub(crate) reading_metadata: Mutex<()>,
    /// The warning that the pool is filling up was logged.
    pub(crate) is_warned: AtomicBool,
}

impl ThinClass {
    /// The class of a pool that nothing is known of yet.
    pub(crate) fn new(pool: ThinPool) -> Self {
        Self {
            pool,
            has_pool: OnceCell::new(),
            looked_for_orphans: Mutex::default(),
            reading_metadata: Mutex::default(),
            is_warned: AtomicBool::new(false),
        }
    }
}

impl Deref for ThinClass {
    type Target = ThinPool;

    fn deref(&self) -> &ThinPool {
        &self.pool
    }
}
