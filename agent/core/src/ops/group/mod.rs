//! Groups of volumes, their snapshots, and rollback.

pub(crate) mod group_snapshot;
pub(crate) mod rollback;
pub(crate) mod volume_group;
