//! What the controller knows of the cluster.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use drumlin_crd::{Candidate, ObjectKey};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tokio::time::Instant;

use super::{ControllerSettings, job::Work, namespaced_store::Index, status_cache::StatusCache};
use crate::{
    record::Record,
    source::kubernetes::server::{KINDS, Server},
};

/// The cached state of the cluster.
pub(super) struct View {
    pub(super) server: Server,
    pub(super) settings: Arc<ControllerSettings>,
    pub(super) objects: HashMap<&'static str, Index<CachedObject>>,
    pub(super) claims: Index<CachedClaim>,
    pub(super) volumes: Index<Option<Bound>>,
    pub(super) nodes: Index<()>,
    /// The missing nodes that objects name.
    pub(super) missing: HashMap<String, Missing>,
    /// The status written to each object.
    pub(super) told: StatusCache,
    /// The objects to check in the next round: those with refused requests, and those without a node.
    pub(super) again: BTreeSet<ObjectKey>,
    /// The writes in flight, and the objects still to be checked.
    pub(super) work: Work,
    /// The objects without a node, by UID, each with the time of its discovery.
    pub(super) homeless: HashMap<String, Instant>,
}

/// A Drumlin object.
#[derive(Debug)]
pub(super) struct CachedObject {
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) is_deleting: bool,
    pub(super) has_finalizer: bool,
    /// True if its condition says that its node is lost.
    pub(super) is_lost: bool,
    /// The conditions that a controller has set while it had no node.
    pub(super) said: Vec<Condition>,
    /// Its spec; `None` if a newer version is needed to read it.
    pub(super) record: Option<Record>,
    pub(super) candidates: Vec<Candidate>,
}

/// A `PersistentVolumeClaim`.
#[derive(Debug)]
pub(super) struct CachedClaim {
    pub(super) uid: String,
    pub(super) labels: std::collections::BTreeMap<String, String>,
    pub(super) volume: Option<String>,
    /// True if Kubernetes has marked the claim as bound, which it does after it has bound the volume.
    pub(super) is_bound: bool,
    pub(super) is_deleting: bool,
}

/// A `PersistentVolume` of this driver.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) handle: String,
    pub(super) namespace: String,
    pub(super) claim: String,
    /// The UID of the claim; `None` if a user has reserved the volume by name and Kubernetes has not bound it yet.
    pub(super) claim_uid: Option<String>,
}

/// A missing node.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) since: Instant,
    /// The UIDs of the objects whose condition was set: once each, because their agent may run without a Node object,
    /// and sets its own condition.
    pub(super) told: HashSet<String>,
}

impl View {
    pub(super) fn new(server: Server, settings: Arc<ControllerSettings>) -> Self {
        Self {
            server,
            settings,
            objects: KINDS
                .iter()
                .map(|(kind, _)| (*kind, Index::default()))
                .collect(),
            claims: Index::default(),
            volumes: Index::default(),
            nodes: Index::default(),
            missing: HashMap::new(),
            told: StatusCache::default(),
            again: BTreeSet::new(),
            work: Work::default(),
            homeless: HashMap::new(),
        }
    }

    /// A Drumlin object.
    pub(super) fn seen(&self, key: &ObjectKey) -> Option<&CachedObject> {
        self.objects
            .get(key.kind.as_str())?
            .get(&key.namespace, &key.name)
    }
}

impl CachedObject {
    /// The node that the object names.
    pub(super) fn node(&self) -> Option<&str> {
        self.record.as_ref()?.node()
    }
}
