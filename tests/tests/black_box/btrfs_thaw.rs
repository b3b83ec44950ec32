//! An agent that is killed while it thaws a file system leaves it writable.

use std::path::PathBuf;

use drumlin_tests::{
    agent::{Agent, Options, PATIENCE},
    programs::{programs_of, run},
    requests::{mounted, snapshot},
    storage::Scratch,
    throttle::SlowReads,
};
use nix::sys::signal::Signal;

use crate::{
    helpers::{mount, put, unmount, volume},
    thaw_watchdog::{eventually, until_stopped},
};

/// Whether a thread of the agent's, or of a program that it has started, is in the middle of a read.
fn waits_for_the_disk(agent: &Agent) -> Option<()> {
    let all = programs_of(agent.pid()).into_iter().chain([agent.pid()]);
    let threads = all.flat_map(|pid| {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        threads.into_iter().flatten().flatten()
    });
    let mut states = threads.filter_map(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        stat.rsplit(") ").next()?.chars().next()
    });
    states.any(|state| state == 'D').then_some(())
}

/// A btrfs reads its superblock when it is thawed, and is read-only from then on when who thaws it is killed meanwhile:
/// with reads that wait for a second there is time for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_btrfs_whose_agent_is_killed_while_it_thaws_it_can_be_written() {
    let options = Options::default().stopped_at("directory.copy.copied");
    let mut agent = Agent::with(Scratch::new(), options).await;
    let id = volume(&agent, "v", 256, &mounted("btrfs")).await;
    let at = mount(&agent, "v", &id, &mounted("btrfs")).await;
    put(&at.1, "before", b"frozen");
    let device = run("findmnt", &["--noheadings", "--output", "SOURCE", &at.0]);
    let reads = SlowReads::of(
        &PathBuf::from(device.trim()),
        &format!("drumlin-test-{}", agent.pid()),
    );
    let mut controller = agent.controller();
    let request = snapshot("s", &id);
    let mut call = tokio::spawn(async move { controller.create_snapshot(request).await });
    until_stopped(&agent, &mut call).await;
    let target = at.1.clone();
    let writer = tokio::task::spawn_blocking(move || put(&target, "after", b"thawed"));
    reads.add(agent.pid());
    reads.spend();
    agent.signal(Signal::SIGCONT);
    eventually("nobody thaws it", || waits_for_the_disk(&agent)).await;
    assert!(!writer.is_finished(), "it was thawed before the kill");
    agent.kill();
    assert!(call.await.unwrap().is_err());
    // What still thaws it keeps no other agent from starting.
    agent.restart_with(Options::default()).await;
    let written = tokio::time::timeout(PATIENCE, writer).await;
    written
        .expect("it stays frozen")
        .expect("the file system can be written");
    put(&at.1, "later", b"still");
    unmount(&agent, &id, &at).await;
}
