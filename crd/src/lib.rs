//! The manifest kinds of Drumlin, and how manifests are read.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "tests fail by panicking"
    )
)]

mod annotations;
mod crds;
pub mod cron;
mod deletion_policy;
pub mod group;
pub mod group_snapshot;
pub mod manifest;
pub mod names;
mod quantity;
mod quote;
pub mod selector;
mod served;
pub mod snapshot;
pub mod snapshot_schedule;
mod status;
pub mod validate;
pub mod volume;
pub mod yaml;

pub use crds::{crds, from_yaml, tidied, to_yaml};
pub use deletion_policy::{DeletionPolicy, VolumeDeletionPolicy};
pub use group::{
    Candidate, GroupMember, MemberKind, MemberStatus, VolumeGroup, VolumeGroupSpec,
    VolumeGroupStatus,
};
pub use group_snapshot::{GroupSnapshot, GroupSnapshotSpec, GroupSnapshotStatus, MemberSnapshot};
pub use manifest::{Document, Manifest, Object, ObjectKey, Problem, read};
pub use quantity::{Quantity, QuantityError};
pub use quote::quote;
pub use selector::{Operator, Requirement, Selector};
pub use snapshot::{Snapshot, SnapshotSource, SnapshotSpec, SnapshotStatus};
pub use snapshot_schedule::{
    Retention, ScheduleTarget, SnapshotSchedule, SnapshotScheduleSpec, SnapshotScheduleStatus,
};
pub use status::{LastOperation, Observed, Progress};
pub use volume::{
    FsType, GroupSnapshotMember, Volume, VolumeMode, VolumeMount, VolumeSource, VolumeSpec,
    VolumeStatus,
};
