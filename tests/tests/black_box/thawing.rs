//! An agent that is killed while it thaws a file system leaves it writable.

use std::{path::PathBuf, time::Duration};

use drumlin_tests::{
    agent::{Agent, Options},
    programs::run,
    requests::{mounted, snapshot},
    storage::Scratch,
    throttle::SlowReads,
};
use nix::sys::signal::Signal;

use crate::{
    guard::{eventually, is_stopped},
    kit::{mount, put, unmount, volume},
};

/// A btrfs reads its superblock when it is thawed, and is read-only from then on when who thaws it is killed meanwhile:
/// with reads that wait for a second there is time for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_btrfs_whose_agent_is_killed_while_it_thaws_it_can_be_written() {
    let environment = [
        ("DRUMLIN_FAIL", "directory.copy.copied"),
        ("DRUMLIN_FAIL_BY", "stop"),
    ];
    let options = Options {
        environment: environment
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..Options::default()
    };
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
    let call = tokio::spawn(async move { controller.create_snapshot(request).await });
    eventually("the agent does not stop", || is_stopped(&agent)).await;
    let target = at.1.clone();
    let writer = tokio::task::spawn_blocking(move || put(&target, "after", b"thawed"));
    reads.add(agent.pid());
    reads.spend();
    agent.signal(Signal::SIGCONT);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!writer.is_finished(), "it was thawed before the kill");
    agent.kill();
    assert!(call.await.unwrap().is_err());
    writer.await.expect("the file system can be written");
    agent.restart_with(Options::default()).await;
    put(&at.1, "later", b"still");
    unmount(&agent, &id, &at).await;
}
