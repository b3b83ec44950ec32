//! What is done to a volume group while the power is cut, and what must be there afterwards.
//!
//! `power load FILE` changes volumes until it is killed; it writes down what it begins, and what was acknowledged, in a
//! file that survives. `power check FILE` compares that with what is there after the next boot. `power load-groups FILE` and
//! `power check-groups FILE` do so with group snapshots of volumes that are written meanwhile.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod check;
mod group_check;
mod group_journal;
mod groups;
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
        [_, "load-groups", file] => groups::load(file).await,
        [_, "check-groups", file] => group_check::run(file).await,
        _ => panic!("power load FILE, or power check FILE; the same with -groups"),
    }
}

/// An agent over the group, with so much more said of thick volumes. Its own files are gone after a cut: the disks are the
/// record.
async fn agent(more: &str) -> Agent {
    let class = match Volumes::asked() {
        Volumes::Thin => format!("thin: {{volumeGroup: {GROUP}, pool: pool, overcommit: 100}}"),
        Volumes::Linear => format!("thick: {{volumeGroup: {GROUP}{more}}}"),
        Volumes::Raid1 => format!("thick: {{volumeGroup: {GROUP}, layout: raid1{more}}}"),
    };
    let config = format!("classes: [{{name: default, {class}}}]\n");
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    Agent::with(Scratch::new(), options).await
}

/// Says what the agent has said, when something is not as it must be.
struct Witness<'a>(&'a Agent);

impl Drop for Witness<'_> {
    #[expect(clippy::print_stderr, reason = "the log goes with the machine")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0.log());
        }
    }
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
