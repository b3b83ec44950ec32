//! Spec and status of an object, by kind.

use drumlin_crd::{
    GroupSnapshotSpec, GroupSnapshotStatus, Object, Observed, SnapshotSpec, SnapshotStatus,
    VolumeGroupSpec, VolumeGroupStatus, VolumeSpec, VolumeStatus,
};
use serde::{Deserialize, Serialize};

/// Spec and status of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Body {
    /// Of a volume.
    Volume {
        spec: Box<VolumeSpec>,
        #[serde(default)]
        status: Box<VolumeStatus>,
    },
    /// Of a snapshot.
    Snapshot {
        spec: Box<SnapshotSpec>,
        #[serde(default)]
        status: Box<SnapshotStatus>,
    },
    /// Of a group snapshot.
    GroupSnapshot {
        spec: Box<GroupSnapshotSpec>,
        #[serde(default)]
        status: Box<GroupSnapshotStatus>,
    },
    /// Of a group.
    Group {
        spec: Box<VolumeGroupSpec>,
        #[serde(default)]
        status: Box<VolumeGroupStatus>,
    },
}

impl Body {
    /// The body of a new object, with an empty status.
    pub(crate) fn of(object: &Object) -> Self {
        match object {
            Object::Volume(object) => Self::Volume {
                spec: Box::new(object.spec.clone()),
                status: Box::default(),
            },
            Object::Snapshot(object) => Self::Snapshot {
                spec: Box::new(object.spec.clone()),
                status: Box::default(),
            },
            Object::Group(object) => Self::Group {
                spec: Box::new(object.spec.clone()),
                status: Box::default(),
            },
            Object::GroupSnapshot(object) => Self::GroupSnapshot {
                spec: Box::new(object.spec.clone()),
                status: Box::default(),
            },
        }
    }

    /// Returns true if the specs are equal.
    pub(super) fn wants_as(&self, object: &Object) -> bool {
        match (self, object) {
            (Self::Volume { spec, .. }, Object::Volume(object)) => **spec == object.spec,
            (Self::Snapshot { spec, .. }, Object::Snapshot(object)) => **spec == object.spec,
            (Self::Group { spec, .. }, Object::Group(object)) => **spec == object.spec,
            (Self::GroupSnapshot { spec, .. }, Object::GroupSnapshot(object)) => {
                **spec == object.spec
            }
            _ => false,
        }
    }

    /// Takes over the spec of another body; the kind, which is part of the key, is the same.
    pub(crate) fn take_spec(&mut self, other: Self) {
        match (self, other) {
            (Self::Volume { spec, .. }, Self::Volume { spec: now, .. }) => *spec = now,
            (Self::Snapshot { spec, .. }, Self::Snapshot { spec: now, .. }) => *spec = now,
            (Self::Group { spec, .. }, Self::Group { spec: now, .. }) => *spec = now,
            (Self::GroupSnapshot { spec, .. }, Self::GroupSnapshot { spec: now, .. }) => {
                *spec = now;
            }
            _ => {}
        }
    }

    pub(super) fn status(&self) -> &dyn Observed {
        match self {
            Self::Volume { status, .. } => &**status,
            Self::Snapshot { status, .. } => &**status,
            Self::Group { status, .. } => &**status,
            Self::GroupSnapshot { status, .. } => &**status,
        }
    }

    pub(super) fn status_mut(&mut self) -> &mut dyn Observed {
        match self {
            Self::Volume { status, .. } => &mut **status,
            Self::Snapshot { status, .. } => &mut **status,
            Self::Group { status, .. } => &mut **status,
            Self::GroupSnapshot { status, .. } => &mut **status,
        }
    }
}
