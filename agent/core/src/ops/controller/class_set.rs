//! Replacing the classes of an agent that serves.
//!
//! **Invariant:** a class leaves only while no operation is in flight, and after it was retired: an operation that began
//! before has ended, and one that begins later creates nothing in it.

use std::sync::Arc;

use crate::Result;
use crate::ops::{Class, ClassSet, Operations, recovery::RecoveryTime};
use crate::{host::io_limits::IoLimits, types::ImageKind};

/// What a retired class holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupancy {
    /// Nothing.
    Empty,
    /// Images.
    Images,
    /// Perhaps an image that is being created.
    InFlight,
}

impl Class {
    /// Returns true if the class holds no image of any kind.
    ///
    /// # Errors
    /// If its storage cannot be read.
    pub async fn is_empty(&self) -> Result<bool> {
        for kind in ImageKind::ALL {
            if !self.backend.list(kind).await?.is_empty() {
                return Ok(false);
            }
        }
        Ok(self.backend.deleting().await?.is_empty())
    }
}

impl Operations {
    /// Replaces the classes. One that is new is recovered first, and one that is there no more is forgotten.
    pub async fn set_classes(self: &Arc<Self>, set: ClassSet) {
        let before = self.classes.now();
        let is_in = |set: &ClassSet, class: &Class| set.all().any(|one| one.is(class));
        let new: Vec<Class> = set
            .all()
            .filter(|class| !is_in(&before, class))
            .cloned()
            .collect();
        for class in before.all().filter(|class| !is_in(&set, class)) {
            self.unrecovered().remove(&class.name);
            self.known.forget(class);
        }
        let recovered = self.recover_each(new).await;
        let relimited: Vec<(Class, IoLimits)> = set
            .all()
            .filter_map(|class| {
                let before = before.all().find(|before| before.is(class))?;
                (before.limits != class.limits).then(|| (class.clone(), before.limits))
            })
            .collect();
        self.classes.replace(set);
        for (class, before) in relimited {
            self.limit_class(&class, before);
        }
        for class in recovered {
            if let Err(error) = self.recover_groups(&class, RecoveryTime::Later).await {
                self.recover_later(&class, &error);
            }
        }
        self.readings.note_change();
    }

    /// What a retired class holds.
    ///
    /// # Errors
    /// If its storage cannot be read.
    pub async fn occupancy(&self, class: &Class) -> Result<Occupancy> {
        // Asked first: what begins later creates nothing in a retired class.
        let is_idle = self.changes.is_idle();
        Ok(if !class.is_empty().await? {
            Occupancy::Images
        } else if is_idle {
            Occupancy::Empty
        } else {
            Occupancy::InFlight
        })
    }

    /// Waits until something may have changed what the classes hold. `known` is the number of changes before; it is
    /// updated.
    pub async fn changed(&self, known: &mut u64) {
        let changes = self.readings.changes();
        changes.more_than(*known).await;
        *known = changes.now();
    }
}
