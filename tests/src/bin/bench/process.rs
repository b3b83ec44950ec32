//! The process: how soon it answers, and how much memory it has.

use std::{
    fs,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{
    DeleteSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest, ProbeRequest,
};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::{run, workspace},
    requests::{create, delete, raw, snapshot},
    storage::{Kind, Scratch},
};

use tokio::task::JoinSet;

use crate::{
    idle::{done, millis},
    measure::{Table, median},
};

/// Builds the release binary and has the harness use it.
pub(crate) fn build() {
    run(
        "cargo",
        &[
            "build",
            "--quiet",
            "--release",
            "--locked",
            "--package",
            "drumlin",
        ],
    );
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), Into::into);
    drumlin_tests::programs::use_binary(target.join("release/drumlin"));
}

/// An agent with one class on a file system of its own.
pub(crate) async fn agent(storage: Kind, mebibytes: u64) -> Agent {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", storage, mebibytes);
    let config = format!(
        "classes: [{{name: default, directory: {{path: {}}}}}]\n",
        images.display()
    );
    let options = Options {
        config: Some(config),
        arguments: vec!["--log-level=warn".to_owned()],
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

/// Resident memory in MiB.
pub(crate) fn resident(agent: &Agent) -> f64 {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kibibytes / 1024.0
}

/// From the start of the process to the first answered Probe, in milliseconds: the median of several starts.
async fn start(agent: &mut Agent) -> f64 {
    let mut times = Vec::new();
    for _ in 0..15 {
        agent.kill();
        let begun = Instant::now();
        agent.spawn();
        // Dialled anew each time: a channel that was refused waits before it tries again.
        while agent.identity().probe(ProbeRequest {}).await.is_err() {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        times.push(begun.elapsed());
    }
    median(times).as_secs_f64() * 1000.0
}

pub(crate) async fn start_and_memory(table: &mut Table) {
    let mut agent = agent(Kind::Ext4, 4 << 10).await;
    table.most(
        "start to first answered Probe, empty",
        start(&mut agent).await,
        15.0,
        "ms",
    );
    table.most("resident memory, idle", resident(&agent), 15.0, "MiB");
    let ids = create_from_eight(&agent, 1000).await;
    lists(table, &agent, &ids).await;
    table.most(
        "resident memory, after 1,000 volumes from 8 callers and lists of them",
        resident(&agent),
        20.0,
        "MiB",
    );
    table.most(
        "start to first answered Probe, 1,000 volumes",
        start(&mut agent).await,
        50.0,
        "ms",
    );
    // The agent that has made and listed them all is gone; this one lists them once more, and deletes them.
    lists(table, &agent, &[]).await;
    for id in ids {
        agent.controller().delete_volume(delete(&id)).await.unwrap();
    }
    // It gives memory back when no call has come for a second.
    tokio::time::sleep(Duration::from_secs(12)).await;
    table.most(
        "resident memory, idle after all are deleted",
        resident(&agent),
        15.0,
        "MiB",
    );
}

/// So many volumes, each of eight callers on a connection of its own; their ids.
async fn create_from_eight(agent: &Agent, count: usize) -> Vec<String> {
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        let mut controller = agent.controller();
        callers.spawn(async move {
            let mut ids = Vec::new();
            for index in (caller..count).step_by(8) {
                let created = controller.create_volume(create(&format!("v{index}"), 16, &raw()));
                ids.push(
                    created
                        .await
                        .unwrap()
                        .into_inner()
                        .volume
                        .unwrap()
                        .volume_id,
                );
            }
            ids
        });
    }
    callers.join_all().await.concat()
}

/// Lists of all volumes, and of a snapshot of each of the first forty of `ids` if there are any.
async fn lists(table: &mut Table, agent: &Agent, ids: &[String]) {
    let mut controller = agent.controller();
    // The first one reads what the calls before have changed.
    controller
        .list_volumes(ListVolumesRequest::default())
        .await
        .unwrap();
    let before = done(agent);
    for _ in 0..100 {
        let list = controller.list_volumes(ListVolumesRequest::default()).await;
        assert_eq!(list.unwrap().into_inner().entries.len(), 1000);
    }
    if ids.is_empty() {
        return;
    }
    table.most(
        "ListVolumes of 1,000, processor time",
        millis(done(agent).ticks - before.ticks) / 100.0,
        2.0,
        "ms",
    );
    let mut taken = Vec::new();
    for (index, id) in ids.iter().take(40).enumerate() {
        let made = controller.create_snapshot(snapshot(&format!("s{index}"), id));
        taken.push(made.await.unwrap().into_inner().snapshot.unwrap());
    }
    let before = done(agent);
    for _ in 0..500 {
        let list = controller.list_snapshots(ListSnapshotsRequest::default());
        assert_eq!(list.await.unwrap().into_inner().entries.len(), 40);
    }
    table.most(
        "ListSnapshots of 40, processor time",
        millis(done(agent).ticks - before.ticks) / 500.0,
        0.3,
        "ms",
    );
    for snapshot in taken {
        let request = DeleteSnapshotRequest {
            snapshot_id: snapshot.snapshot_id,
            ..Default::default()
        };
        controller.delete_snapshot(request).await.unwrap();
    }
}
