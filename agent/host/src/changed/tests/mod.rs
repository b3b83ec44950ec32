//! The searches on real file systems; these tests need root.

mod checks;
mod controls;
mod edges;
mod histories;
mod history;
mod moving;
mod shared;
