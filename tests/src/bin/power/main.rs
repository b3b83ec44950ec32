//! What is done to a volume group while the power is cut, and what must be there afterwards.
//!
//! `power load FILE` changes volumes until it is killed; it writes down what it begins, and what was acknowledged, in a
//! file that survives. `power check FILE` compares that with what is there after the next boot.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod check;
mod journal;
mod load;

use std::path::PathBuf;

use drumlin_tests::{
    agent::{Agent, Options, Volumes},
    storage::Scratch,
};

/// The group, and in it `pool` for thin volumes, is made by who starts the machine.
const GROUP: &str = "power";
/// What is written and synced at a time, in bytes.
const BLOCK: usize = 64 << 10;
/// So many rounds of the load live side by side before the oldest is deleted.
const ROUNDS: usize = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "load", file] => load::run(file).await,
        [_, "check", file] => check::run(file).await,
        _ => panic!("power load FILE, or power check FILE"),
    }
}

/// An agent over the group, whose own files are gone after a cut: the disks are the record.
async fn agent() -> Agent {
    let class = match Volumes::asked() {
        Volumes::Thin => format!("thin: {{volumeGroup: {GROUP}, pool: pool, overcommit: 100}}"),
        Volumes::Linear => format!("thick: {{volumeGroup: {GROUP}}}"),
        Volumes::Raid1 => format!("thick: {{volumeGroup: {GROUP}, layout: raid1}}"),
    };
    let config = format!("classes: [{{name: default, {class}}}]\n");
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    Agent::with(Scratch::new(), options).await
}

/// Where the bytes of a volume (`v`) or a snapshot (`s`) are.
fn device(id: &str, kind: char) -> PathBuf {
    let key = id.rsplit('/').next().unwrap();
    PathBuf::from(format!("/dev/{GROUP}/dl-{kind}-{key}"))
}

/// The bytes that are written for a number.
fn pattern(number: u64) -> Vec<u8> {
    (number + 1).to_le_bytes().repeat(BLOCK / 8)
}
