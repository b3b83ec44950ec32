//! What operators install and watch, judged by the programs that they do it with: no API server is needed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod chart;
mod hosts;
mod rules;

use std::path::PathBuf;

use drumlin_tests::programs::{run, workspace};

/// A program of the lab, by the setup that builds it: once on a machine.
fn lab(setup: &str, name: &str) -> PathBuf {
    let setup = workspace().join("tests/lab").join(setup).join("setup");
    PathBuf::from(run(&setup.to_string_lossy(), &[name]).trim()).join(name)
}
