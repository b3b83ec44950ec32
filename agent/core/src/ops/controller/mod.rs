//! The controller: volumes, snapshots, capacity, and what they are asked for by.

pub(crate) mod adoption;
pub(crate) mod all_classes;
pub(crate) mod capacity;
pub(crate) mod changed_blocks;
pub(crate) mod class_set;
pub(crate) mod class_watch;
pub(crate) mod classes;
pub(crate) mod controller_publish;
pub(crate) mod delete_volume;
pub(crate) mod foreign;
pub(crate) mod foreign_contents;
pub(crate) mod health;
pub(crate) mod idempotency;
pub(crate) mod inventory;
pub(crate) mod known_images;
pub(crate) mod labels;
pub(crate) mod mutable_parameters;
pub(crate) mod pagination;
pub(crate) mod parameters;
pub(crate) mod snapshot;
pub(crate) mod survey;
pub(crate) mod trash;
pub(crate) mod trash_room;
pub(crate) mod validate;
pub(crate) mod volume;
