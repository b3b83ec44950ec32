//! What a pass over the manifests would do: the reconciler itself over a copy of its state in memory, in front of an
//! agent whose answers a dry run gives. So a plan is what the same code would request, and cannot differ from it.
//!
//! **Invariant:** neither the agent, the state directory nor the host is changed.

mod change;
mod render;
mod run;

use drumlin_crd::ObjectKey;
use serde::Serialize;

use crate::status::FileProblem;

pub use change::{Action, PlannedChange};
pub(crate) use run::node;
pub use run::{Settings, plan};

/// What a pass over the manifests would do.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The name of the node.
    pub node: String,
    /// The directory of manifests.
    pub directory: String,
    /// Why the agent was not asked, if it does not answer: the plan is made from the state files alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_unreachable: Option<String>,
    /// Why the directory cannot be used, if so: nothing is changed then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// Number of manifest files.
    pub files: usize,
    /// Number of objects in them that belong to this node.
    pub objects: usize,
    /// Number of objects in them that belong to other nodes.
    pub elsewhere: usize,
    /// What would be done, and what would not, by action, kind, namespace and name.
    pub changes: Vec<PlannedChange>,
    /// The problems of manifest files: the last valid version of a file applies.
    pub problems: Vec<FileProblem>,
    /// Files and subdirectories that may be meant as manifests, and are ignored.
    pub ignored_files: Vec<String>,
    /// State files that cannot be read: their objects are not planned.
    pub unreadable: Vec<String>,
    /// Classes with less room than the plan needs.
    pub shortages: Vec<Shortage>,
}

/// A class with less room than a plan needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    /// Its name; empty for the default class.
    pub class: String,
    /// What new and growing volumes need, in bytes.
    pub needed_bytes: u64,
    /// What is available, in bytes.
    pub available_bytes: u64,
}

/// What a plan amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// There is nothing to do.
    Nothing,
    /// Something would be changed, or waits.
    Changes,
    /// A manifest is invalid, or asks for what cannot be.
    Invalid,
    /// The agent does not answer.
    Unreachable,
}

impl Plan {
    /// What it amounts to.
    pub fn outcome(&self) -> Outcome {
        let is_to_do = |change: &PlannedChange| change.action != Action::Orphan;
        if self.agent_unreachable.is_some() {
            Outcome::Unreachable
        } else if !self.problems.is_empty() || self.unavailable.is_some() {
            Outcome::Invalid
        } else if self.changes.iter().any(is_to_do) || !self.unreadable.is_empty() {
            Outcome::Changes
        } else {
            Outcome::Nothing
        }
    }

    /// The number of changes of an action.
    fn count(&self, is_meant: impl Fn(Action) -> bool) -> usize {
        let changes = self.changes.iter();
        changes.filter(|change| is_meant(change.action)).count()
    }
}

/// `Kind/namespace/name`.
fn shown(key: &ObjectKey) -> String {
    let ObjectKey {
        kind,
        namespace,
        name,
    } = key;
    format!("{kind}/{namespace}/{name}")
}
