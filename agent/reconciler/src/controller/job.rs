//! What there is to do for an object, and what came of it.

use std::collections::{BTreeSet, HashSet};

use drumlin_crd::ObjectKey;
use futures::{future::BoxFuture, stream::FuturesUnordered};
use serde_json::Value;

/// The aspect of an object to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Aspect {
    /// The claims that it selects, and its node.
    Claims,
    /// Whether its node exists.
    Node,
}

/// The objects to check, and those with a write in flight.
#[derive(Default)]
pub(super) struct Work {
    pub(super) due: BTreeSet<(Aspect, ObjectKey)>,
    /// The objects with a write in flight: none is checked again before the write has ended.
    pub(super) busy: HashSet<ObjectKey>,
    pub(super) running: FuturesUnordered<BoxFuture<'static, Done>>,
}

/// The requests for one object.
#[derive(Debug)]
pub(super) enum Job {
    /// Writes the claims that it selects, if they have changed, and then assigns its node, if there is one.
    Claims {
        status: Option<Value>,
        /// The claims to verify first, each with its known UID.
        claims: Vec<(String, Option<String>)>,
        node: Option<String>,
    },
    /// Writes that its node is lost.
    Lost { status: Value, node: String },
    /// Removes its finalizer: no agent is left to delete it, and an administrator has abandoned the node.
    LetGo { node: String },
}

/// The result of a job.
pub(super) struct Done {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    /// The status that was written.
    pub(super) told: Option<Value>,
    /// True if the object does not exist, or another one has its name.
    pub(super) is_gone: bool,
    /// True if it must be checked again, even if nothing else changes.
    pub(super) is_again: bool,
    /// The node that its condition reports as lost.
    pub(super) lost: Option<String>,
}
