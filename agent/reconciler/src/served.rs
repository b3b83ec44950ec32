//! Records of objects that an API server has: what it says of them, and what it is told.

use drumlin_crd::{GroupSnapshotStatus, MemberSnapshot, Object, SnapshotStatus, VolumeGroupStatus};
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
    pub(crate) is_guarded: bool,
    /// Whether it is being deleted.
    #[serde(default)]
    pub(crate) is_leaving: bool,
    /// Whether its kind is being deleted and not it alone: then nothing is destroyed.
    #[serde(default)]
    pub(crate) is_kept: bool,
    /// Whether it was begun by an agent whose state is lost: what there may be of it is found by its name.
    #[serde(default)]
    pub(crate) is_forgotten: bool,
}

impl Record {
    /// The record of an object of an API server that was never seen before.
    pub(crate) fn of_server(object: &Object, served: Served) -> Self {
        let mut record = Self::new(object, CLUSTER, 0);
        record.metadata.generation = object.metadata().generation;
        record.drumlin.incarnation.clone_from(&served.uid);
        record.drumlin.served = Some(served);
        record
    }

    /// Takes over what an API server says now; says whether there is anything new.
    pub(crate) fn follow_server(&mut self, object: &Object, served: Served) -> bool {
        let metadata = object.metadata();
        let served = Served {
            is_forgotten: self.served().is_some_and(|before| before.is_forgotten),
            ..served
        };
        let is_same = self.says(object, (CLUSTER, 0))
            && self.metadata.generation == metadata.generation
            && self.served() == Some(&served);
        if is_same {
            return false;
        }
        self.body.take_spec(Body::of(object));
        self.metadata.annotations.clone_from(&metadata.annotations);
        self.metadata.labels.clone_from(&metadata.labels);
        self.metadata.generation = metadata.generation;
        self.drumlin.orphan_since = None;
        CLUSTER.clone_into(&mut self.drumlin.file);
        self.drumlin.line = 0;
        self.drumlin.served = Some(served);
        true
    }

    /// What an API server says of it, where it came from one.
    pub(crate) fn served(&self) -> Option<&Served> {
        self.drumlin.served.as_ref()
    }

    /// Its status as a server is told.
    pub(crate) fn status(&self) -> Value {
        let body = serde_json::to_value(&self.body).unwrap_or_default();
        body.get("status").cloned().unwrap_or_default()
    }

    /// Takes from the status that a server has what a repeated call must say again; the rest is found out anew.
    pub(crate) fn recall(&mut self, status_told: &Value) {
        match &mut self.body {
            Body::Snapshot { status, .. } => {
                let told: SnapshotStatus = told(status_told);
                status.source_volume_handle = told.source_volume_handle;
                status.csi_name = told.csi_name;
            }
            Body::Group { status, .. } => {
                let told: VolumeGroupStatus = told(status_told);
                status.csi_name = told.csi_name;
            }
            Body::GroupSnapshot { status, .. } => {
                let told: GroupSnapshotStatus = told(status_told);
                let members = told.members.into_iter().map(|member| MemberSnapshot {
                    snapshot_handle: None,
                    restore_size: None,
                    ready_to_use: false,
                    ..member
                });
                status.members = members.collect();
                status.csi_name = told.csi_name;
            }
            Body::Volume { .. } => {}
        }
        if let Some(served) = &mut self.drumlin.served {
            served.is_forgotten = true;
        }
    }

    /// Whether there may be something of it that nothing here knows of.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.served().is_some_and(|served| served.is_forgotten)
    }

    /// What there is of it is known by now.
    pub(crate) fn is_found(&mut self) {
        if let Some(served) = &mut self.drumlin.served {
            served.is_forgotten = false;
        }
    }

    /// Whether there is something of it that the server might forget.
    pub(crate) fn lacks_guard(&self) -> bool {
        let is_open = |served: &Served| !served.is_guarded && !served.is_leaving;
        self.served().is_some_and(is_open) && self.is_begun()
    }

    /// Takes over what the server says by now; what was forgotten is found by a pass, and stays so.
    pub(crate) fn take_over_served(&mut self, now: Option<Served>) {
        let is_forgotten = self.is_forgotten();
        self.drumlin.served = now.map(|served| Served {
            is_forgotten,
            ..served
        });
    }

    /// Our finalizer is on it.
    pub(crate) fn is_guarded_now(&mut self) {
        if let Some(served) = &mut self.drumlin.served {
            served.is_guarded = true;
        }
    }
}

/// A status as far as it can be read.
fn told<T: DeserializeOwned + Default>(status: &Value) -> T {
    serde_json::from_value(status.clone()).unwrap_or_default()
}
