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

pub mod yaml;
