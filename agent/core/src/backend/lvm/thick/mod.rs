//! Thick volumes: all their extents are allocated at creation, linear, striped or mirrored.

mod changed;
pub(crate) mod class;
pub(crate) mod copy;
mod ends;
mod group_snapshot;
mod legs;
mod mirrors;
pub(crate) mod remove;
mod rollback;
mod space;
mod volume_type;
pub(crate) mod volumes;
pub(crate) mod wipe;
