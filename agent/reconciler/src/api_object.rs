//! Records of objects that an API server has: what it says of them, and what it is told.

use drumlin_crd::{Candidate, Object};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::record::{Body, Record};

/// What stands for the file of an object that an API server has.
pub(crate) const CLUSTER: &str = "(cluster)";

/// What an API server says of an object, beside what every manifest does.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and any of them may hold"
)]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Served {
    /// The object's own id: one that is made again has another.
    pub(crate) uid: String,
    /// The id of its namespace: one that is made again is another tenant's.
    pub(crate) namespace_uid: String,
    /// Whether our finalizer is on it.
    #[serde(default)]
    pub(crate) has_finalizer: bool,
    /// Whether it is being deleted.
    #[serde(default)]
    pub(crate) is_deleting: bool,
    /// Whether its kind is being deleted and not it alone: then nothing is destroyed.
    #[serde(default)]
    pub(crate) is_kept: bool,
    /// Whether it was begun by an agent whose state is lost: what there may be of it is found by its name.
    #[serde(default)]
    pub(crate) is_state_lost: bool,
    /// The claims that it means, as the controller has found them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) candidates: Vec<Candidate>,
}

impl Record {
    /// The record of an object of an API server that was never seen before.
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

    /// Takes over what an API server says now; says whether there is anything new.
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
        // What was judged of another one of the name says nothing of this one.
        if self.served().is_none_or(|before| before.uid != served.uid) {
            self.unsettle();
            self.drumlin.owner_unset = true;
        }
        self.body.take_spec(Body::of(object));
        self.metadata.annotations.clone_from(&metadata.annotations);
        self.metadata.labels.clone_from(&metadata.labels);
        self.metadata.generation = metadata.generation;
        self.drumlin.orphan_since = None;
        CLUSTER.clone_into(&mut self.drumlin.file);
        self.drumlin.line = 0;
        self.drumlin.served = Some(served);
        // Who is wanted again was not destroyed: an end that comes later is another one.
        self.drumlin.destroyed &= self.is_absent();
        true
    }

    /// Takes over what an API server says of an object whose spec cannot be read; says whether there is anything new.
    pub(crate) fn follow_unreadable(&mut self, generation: Option<i64>, served: Served) -> bool {
        let before = (self.metadata.generation, self.drumlin.served.clone());
        self.metadata.generation = generation;
        self.take_over_served(Some(served));
        before != (self.metadata.generation, self.drumlin.served.clone())
    }

    /// Whether it may use what another object stands for: a file of this host whatever is here, an object of a namespace
    /// what is of that very namespace.
    pub(crate) fn may_use(&self, other: &Self) -> bool {
        match (self.served(), other.served()) {
            (None, _) => true,
            (Some(own), Some(other)) => own.namespace_uid == other.namespace_uid,
            (Some(_), None) => false,
        }
    }

    /// What an API server says of it, where it came from one.
    pub(crate) fn served(&self) -> Option<&Served> {
        self.drumlin.served.as_ref()
    }

    /// The claims that it means, as the controller has found them.
    pub(crate) fn candidates(&self) -> &[Candidate] {
        self.served().map_or(&[], |served| &served.candidates)
    }

    /// Its status as a server is told.
    pub(crate) fn status(&self) -> Value {
        let body = serde_json::to_value(&self.body).unwrap_or_default();
        body.get("status").cloned().unwrap_or_default()
    }

    /// Takes over the status that a server has of an object whose record is lost: what was made is looked for by its id,
    /// and only what has none is found by its name.
    pub(crate) fn recall(&mut self, told: &Value) {
        let is_known = match &mut self.body {
            Body::Volume { spec, status } => {
                **status = read(told);
                if status.mount_path.is_some() {
                    self.drumlin.mounted.clone_from(&spec.mount);
                }
                status.volume_handle.is_some()
            }
            Body::Snapshot { status, .. } => {
                **status = read(told);
                status.candidates = Vec::new();
                status.snapshot_handle.is_some()
            }
            Body::Group { status, .. } => {
                **status = read(told);
                status.candidates = Vec::new();
                status.group_handle.is_some()
            }
            Body::GroupSnapshot { status, .. } => {
                **status = read(told);
                status.group_snapshot_handle.is_some()
            }
        };
        self.unsettle();
        if let Some(served) = &mut self.drumlin.served {
            served.is_state_lost = !is_known;
        }
    }

    /// Whether there may be something of it that nothing here knows of.
    pub(crate) fn is_state_lost(&self) -> bool {
        self.served().is_some_and(|served| served.is_state_lost)
    }

    /// What there is of it is known by now.
    pub(crate) fn is_found(&mut self) {
        if let Some(served) = &mut self.drumlin.served {
            served.is_state_lost = false;
        }
    }

    /// Whether there is something of it that the server might forget.
    pub(crate) fn lacks_finalizer(&self) -> bool {
        let is_open = |served: &Served| !served.has_finalizer && !served.is_deleting;
        self.served().is_some_and(is_open) && self.is_begun()
    }

    /// Takes over what the server says by now; what was forgotten is found by a pass, and stays so.
    pub(crate) fn take_over_served(&mut self, now: Option<Served>) {
        let is_state_lost = self.is_state_lost();
        self.drumlin.served = now.map(|served| Served {
            is_state_lost,
            ..served
        });
    }

    /// Our finalizer is on it.
    pub(crate) fn has_finalizer_now(&mut self) {
        if let Some(served) = &mut self.drumlin.served {
            served.has_finalizer = true;
        }
    }
}

/// A status as far as it can be read.
fn read<T: DeserializeOwned + Default>(status: &Value) -> T {
    serde_json::from_value(status.clone()).unwrap_or_default()
}
