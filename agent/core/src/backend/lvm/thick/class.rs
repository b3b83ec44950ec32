//! A class of thick volumes: its settings, and what this process knows of its volumes.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Mutex, MutexGuard},
};

use drumlin_lvm::in_flight::InFlightGuard;

use crate::{backend::lvm::Thick, host::lock, types::ImageId};

/// The settings, with what is remembered between calls.
#[derive(Debug)]
pub(crate) struct ThickClass {
    thick: Thick,
    unfilled: Mutex<HashMap<ImageId, InFlightGuard>>,
}

impl ThickClass {
    /// A class of which nothing is known yet.
    pub(crate) fn new(thick: Thick) -> Self {
        Self {
            thick,
            unfilled: Mutex::default(),
        }
    }

    /// The volumes whose creation has begun and that are not filled yet.
    pub(crate) fn unfilled(&self) -> MutexGuard<'_, HashMap<ImageId, InFlightGuard>> {
        lock(&self.unfilled)
    }
}

impl Deref for ThickClass {
    type Target = Thick;

    fn deref(&self) -> &Thick {
        &self.thick
    }
}
