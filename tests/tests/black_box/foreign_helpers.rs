//! The commands about volumes of others, and what is seen of a volume meanwhile.

use std::{fs, process::Output};

use drumlin_tests::{
    agent::{Agent, write},
    programs::{complaint, printed, run},
};

use crate::helpers::text;

/// Whether a point is met in `foreign_files.rs` or in `lvm/foreign_taken.rs`, and nowhere else.
pub(crate) fn is_own(point: &str) -> bool {
    let own = [
        "adopt-volume.",
        "release-volume.",
        "directory.adopt.",
        "directory.release.",
    ];
    let of_lvm = ["lvm.adopt.", "lvm.release."];
    own.iter().chain(&of_lvm).any(|own| point.starts_with(own))
}

/// Runs a command of the administrator against the agent.
pub(crate) fn command(agent: &Agent, command: &str, arguments: &[&str]) -> Output {
    let state = text(agent.path("state"));
    let endpoint = text(agent.socket());
    let common = [command, "--state-dir", &state, "--endpoint", &endpoint];
    agent.command(&[&common[..], arguments].concat())
}

/// What it prints, which must succeed.
#[track_caller]
pub(crate) fn done(agent: &Agent, name: &str, arguments: &[&str]) -> String {
    printed(&command(agent, name, arguments), (name, arguments))
}

/// Why it fails, which it must.
#[track_caller]
pub(crate) fn fails(agent: &Agent, name: &str, arguments: &[&str]) -> String {
    complaint(&command(agent, name, arguments))
}

/// A digest of all bytes of a file or device.
pub(crate) fn digest(path: &str) -> String {
    let line = run("sha256sum", &[path]);
    line.split_whitespace().next().unwrap().to_owned()
}

/// The ids of the mounts at a path.
pub(crate) fn mounts_at(path: &str) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let lines = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    lines
        .filter(|words| words[4] == path)
        .map(|words| words[0].to_owned())
        .collect()
}

/// A printed manifest is valid, and offline.
pub(crate) fn validated(agent: &Agent, manifest: &str) {
    let path = agent.path("printed.yaml");
    write(&path, manifest);
    let output = agent.command(&["validate", &text(path)]);
    assert!(output.status.success(), "{output:?}\n{manifest}");
}
