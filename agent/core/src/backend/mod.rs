//! Back ends: they store images, one value per device class.
//!
//! The rules of volumes and snapshots are implemented once, in [`crate::ops`]; a back end stores data and labels.

mod adoption;
mod contract;
pub mod directory;
mod image;
mod jobs;
pub mod lvm;
mod snapshots;
#[cfg(test)]
mod suite;

pub use adoption::Adoption;
pub use contract::{Backend, Capacity, Family, Features};
pub use image::{Change, Health, Image, ImageSpec, LabelChange, Labels, Origin};
pub use jobs::Jobs;
pub use snapshots::Snapshots;
