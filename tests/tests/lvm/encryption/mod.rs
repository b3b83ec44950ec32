//! Volumes of classes that encrypt: over logical volumes of the kind that is asked for, and over image files.

mod copies;
mod credential;
mod kills;
mod life;
mod rotation;
pub(crate) mod setup;
mod trash;
