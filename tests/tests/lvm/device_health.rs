//! What the node says of a volume whose device does not answer, or was given up by device-mapper.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{NodeGetVolumeHealthRequest, VolumeHealth};
use drumlin_tests::{
    agent::Agent,
    programs::{run, waiting},
    requests::{mounted, raw},
};

use crate::helpers::{mount, ok, unmount, volume};

/// So long a call may take: two seconds for the disk, and some for a machine that is busy.
const SOON: Duration = Duration::from_secs(6);

async fn health(agent: &Agent, id: &str) -> VolumeHealth {
    let request = NodeGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        ..NodeGetVolumeHealthRequest::default()
    };
    let begun = Instant::now();
    let answer = ok(agent.node().node_get_volume_health(request).await);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    answer.volume_health.unwrap()
}

fn reasons(health: &VolumeHealth) -> Vec<&str> {
    let entries = health.health_statuses.iter();
    entries.map(|entry| entry.reason.as_str()).collect()
}

/// The device of a volume, by the name that device-mapper has for it.
fn device(at: &str) -> String {
    let number = run("stat", &["-c", "%Hr:%Lr", at]);
    let name = run(
        "cat",
        &[&format!("/sys/dev/block/{}/dm/name", number.trim())],
    );
    name.trim().to_owned()
}

#[tokio::test]
async fn a_device_that_does_not_answer_is_told_and_costs_one_thread() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 16, &raw()).await;
    let other = volume(&agent, "other", 16, &mounted("ext4")).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    let name = device(&at.1);
    assert_eq!(reasons(&health(&agent, &id).await), [""; 0]);
    let before = waiting(agent.pid());
    run("dmsetup", &["suspend", "--noflush", &name]);
    let calls = (0..8).map(|_| health(&agent, &id));
    for found in futures::future::join_all(calls).await {
        assert_eq!(reasons(&found), ["DiskStalled"], "{found:?}");
    }
    let more = waiting(agent.pid()).saturating_sub(before);
    assert!(more <= 1, "{more} threads wait for one disk");
    assert_eq!(reasons(&health(&agent, &other).await), [""; 0]);
    run("dmsetup", &["resume", &name]);
    let deadline = Instant::now() + SOON;
    while !reasons(&health(&agent, &id).await).is_empty() {
        assert!(Instant::now() < deadline, "it is stalled no more");
    }
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn a_device_that_was_replaced_by_errors_has_failed() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", 16, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    let name = device(&at.1);
    let table = run("dmsetup", &["table", &name]);
    run("dmsetup", &["wipe_table", &name]);
    assert_eq!(reasons(&health(&agent, &id).await), ["DeviceFailed"]);
    let file = agent.path("table");
    std::fs::write(&file, table).unwrap();
    load(&file, &name);
    assert_eq!(reasons(&health(&agent, &id).await), [""; 0]);
    unmount(&agent, &id, &at).await;
}

fn load(table: &Path, name: &str) {
    run("dmsetup", &["suspend", "--noflush", "--nolockfs", name]);
    run("dmsetup", &["load", name, &table.to_string_lossy()]);
    run("dmsetup", &["resume", name]);
}
