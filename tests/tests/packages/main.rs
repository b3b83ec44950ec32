//! The packages, installed, upgraded and removed in throw-away roots of a Debian host.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod deb;
mod packages;
mod root;
mod rpm;
mod units;
