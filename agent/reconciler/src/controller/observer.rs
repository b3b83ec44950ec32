//! What can be measured of a controller while it runs.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::policies::PolicyStatus;
use crate::state::lock;

/// Reads what a controller has found out about its cluster.
#[derive(Debug, Clone, Default)]
pub struct ControllerObserver(Arc<Mutex<Option<Policies>>>);

/// Policies by their names: true for one that is in force.
pub type Policies = BTreeMap<&'static str, bool>;

impl ControllerObserver {
    /// The policies that the controller has checked since it leads: true for one that is in force, and false for one that
    /// is not, or of which that is not known. `None` if it does not lead.
    pub fn policies(&self) -> Option<Policies> {
        lock(&self.0).clone()
    }

    /// The lease is acquired.
    pub(super) fn note_lead(&self) {
        *lock(&self.0) = Some(Policies::new());
    }

    /// The lease is lost: another controller checks the policies.
    pub(super) fn note_loss(&self) {
        *lock(&self.0) = None;
    }

    /// A policy was checked; one that is not needed is not told of.
    pub(super) fn note_policy(&self, name: &'static str, status: PolicyStatus) {
        if status == PolicyStatus::NotNeeded {
            return;
        }
        if let Some(policies) = &mut *lock(&self.0) {
            policies.insert(name, status == PolicyStatus::InForce);
        }
    }
}
