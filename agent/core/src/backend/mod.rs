//! Back ends: they store images, one value per device class.
//!
//! The rules of volumes and snapshots are implemented once, in [`crate::ops`]; a back end stores data and labels.

mod adoption;
mod changed;
mod checks;
mod contract;
pub mod directory;
pub mod encrypted;
pub(crate) mod foreign;
mod health;
mod image;
mod jobs;
pub mod lvm;
mod room;
mod snapshots;
#[cfg(test)]
mod suite;
pub(crate) mod utilization;

pub use adoption::Adoption;
pub use changed::{ChangedBlocks, ChangedQuery, RangeSink};
pub use checks::Checks;
pub use contract::{AttachedDevice, Backend, Capacity, Family, Features};
pub use foreign::{AdoptionSpec, ForeignVolume, ForeignVolumes, Maker, Selection};
pub use health::{Fault, Health, Impact, Reason};
pub use image::{Change, Image, ImageSpec, LabelChange, Labels, Origin};
pub use jobs::{Job, Jobs, Progress, Running};
pub use snapshots::Snapshots;
pub use utilization::{Space, StorageKind, TrashUse, Utilization};
