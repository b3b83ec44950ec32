//! Records of objects of an API server: the metadata read from it, and the status written to it.

use drumlin_crd::{Candidate, Object};
use serde_json::Value;

use crate::record::{Body, Record, Served};

/// Stands in for the file name in records of API server objects.
pub(crate) const CLUSTER: &str = "(cluster)";

impl Record {
    /// Creates the record of an API server object that is new.
    pub(crate) fn of_server(object: &Object, served: Served) -> Self {
        let mut record = Self::new(object, CLUSTER, 0);
        let metadata = object.metadata();
        record.metadata.generation = metadata.generation;
        let made = &metadata.creation_timestamp;
        record.metadata.creation_timestamp.clone_from(made);
        record.drumlin.incarnation.clone_from(&served.uid);
        record.drumlin.served = Some(served);
        record
    }

    /// Updates the record from the API server; returns true if anything changed.
    pub(crate) fn follow_server(&mut self, object: &Object, served: Served) -> bool {
        let metadata = object.metadata();
        let served = Served {
            is_state_lost: self.served().is_some_and(|before| before.is_state_lost),
            ..served
        };
        let is_same = self.says(object, (CLUSTER, 0))
            && self.metadata.generation == metadata.generation
            && self.served() == Some(&served);
        if is_same {
            return false;
        }
        // The conditions of another object of this name do not apply to this one.
        if self.served().is_none_or(|before| before.uid != served.uid) {
            self.unsettle();
            self.drumlin.owner_unset = true;
        }
        self.body.kind_mut().take_spec(Body::of(object));
        self.metadata.annotations.clone_from(&metadata.annotations);
        self.metadata.labels.clone_from(&metadata.labels);
        self.metadata.generation = metadata.generation;
        self.drumlin.orphan_since = None;
        CLUSTER.clone_into(&mut self.drumlin.file);
        self.drumlin.line = 0;
        self.drumlin.served = Some(served);
        // The object is wanted again, so it counts as not destroyed; a later deletion is a new one.
        self.drumlin.destroyed &= self.is_absent();
        true
    }

    /// Updates the record of an object whose spec cannot be read; returns true if anything changed.
    pub(crate) fn follow_unreadable(&mut self, generation: Option<i64>, served: Served) -> bool {
        let before = (self.metadata.generation, self.drumlin.served.clone());
        self.metadata.generation = generation;
        self.take_over_served(Some(served));
        before != (self.metadata.generation, self.drumlin.served.clone())
    }

    /// Returns true if it may use the resources of another object: an object of a file may use all of this host, an
    /// object of a namespace only those of the same namespace (by UID).
    pub(crate) fn may_use(&self, other: &Self) -> bool {
        match (self.served(), other.served()) {
            (None, _) => true,
            (Some(own), Some(other)) => own.namespace_uid == other.namespace_uid,
            (Some(_), None) => false,
        }
    }

    /// The API server metadata, if it came from one.
    pub(crate) fn served(&self) -> Option<&Served> {
        self.drumlin.served.as_ref()
    }

    /// The `PersistentVolumeClaims` that it selects, as resolved by the controller.
    pub(crate) fn candidates(&self) -> &[Candidate] {
        self.served().map_or(&[], |served| &served.candidates)
    }

    /// Its status as written to the API server.
    pub(crate) fn status(&self) -> Value {
        let body = serde_json::to_value(&self.body).unwrap_or_default();
        body.get("status").cloned().unwrap_or_default()
    }

    /// Restores the status of an object whose record is lost from the API server: a resource with an id is found by the
    /// id, any other by its name.
    pub(crate) fn recall(&mut self, told: &Value) {
        let body = self.body.kind_mut();
        body.recall(told, &mut self.drumlin);
        let is_known = body.handle().is_some();
        self.unsettle();
        if let Some(served) = &mut self.drumlin.served {
            served.is_state_lost = !is_known;
        }
    }

    /// Returns true if resources of it may exist that its record does not name.
    pub(crate) fn is_state_lost(&self) -> bool {
        self.served().is_some_and(|served| served.is_state_lost)
    }

    /// Notes that its resources are now known.
    pub(crate) fn is_found(&mut self) {
        if let Some(served) = &mut self.drumlin.served {
            served.is_state_lost = false;
        }
    }

    /// Returns true if it has resources but no finalizer that keeps the object on the server.
    pub(crate) fn lacks_finalizer(&self) -> bool {
        let is_open = |served: &Served| !served.has_finalizer && !served.is_deleting;
        self.served().is_some_and(is_open) && self.is_begun()
    }

    /// Takes over the server metadata of `now`; whether the state is lost stays as the pass has recorded it.
    pub(crate) fn take_over_served(&mut self, now: Option<Served>) {
        let is_state_lost = self.is_state_lost();
        self.drumlin.served = now.map(|served| Served {
            is_state_lost,
            ..served
        });
    }

    /// Notes that the object has our finalizer.
    pub(crate) fn has_finalizer_now(&mut self) {
        if let Some(served) = &mut self.drumlin.served {
            served.has_finalizer = true;
        }
    }
}
