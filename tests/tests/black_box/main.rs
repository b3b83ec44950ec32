//! The whole agent through its socket and its files, and in no other way.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::too_many_lines,
    reason = "tests fail by panicking"
)]

mod attach;
mod bad_input;
mod concurrency;
mod content;
mod damage;
mod interruption;
mod kit;
mod manifests;
mod node;
mod process;
mod volumes;
