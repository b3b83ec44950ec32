//! The process: how soon it answers, and how much memory it has.

use std::{
    fs,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::ProbeRequest;
use drumlin_tests::{
    agent::{Agent, Options},
    programs::{run, workspace},
    requests::{delete, raw},
    storage::{Kind, Scratch},
};

use crate::{
    driver::Driver,
    measure::{Table, median},
};

/// Builds the release binary and has the harness use it, unless another one is named by `DRUMLIN_BIN`.
pub(crate) fn build() {
    if std::env::var_os("DRUMLIN_BIN").is_some() {
        return;
    }
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
    agent_with(storage, mebibytes, &["--log-level=warn"]).await
}

/// The same with other arguments.
pub(crate) async fn agent_with(storage: Kind, mebibytes: u64, arguments: &[&str]) -> Agent {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", storage, mebibytes);
    let config = format!(
        "classes: [{{name: default, directory: {{path: {}}}}}]\n",
        images.display()
    );
    let options = Options {
        config: Some(config),
        arguments: arguments.iter().map(|&one| one.to_owned()).collect(),
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

/// Resident memory of a process in MiB.
pub(crate) fn resident(pid: i32) -> f64 {
    memory(&pid.to_string(), "VmRSS:")
}

/// A field of the status of a process, in MiB.
fn memory(pid: &str, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kibibytes = line.unwrap().trim().trim_end_matches(" kB");
    kibibytes.parse::<f64>().unwrap() / 1024.0
}

/// Resident memory of a process that may grow.
pub(crate) struct Growth<'a> {
    pid: &'a str,
    before: f64,
}

impl<'a> Growth<'a> {
    /// Looks at a process, `self` for this one.
    pub(crate) fn begin(pid: &'a str) -> Self {
        // Forgets the highest value so far.
        fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
        let before = memory(pid, "VmRSS:");
        Self { pid, before }
    }

    /// How much more it had since, at most, in MiB.
    pub(crate) fn end(self) -> f64 {
        memory(self.pid, "VmHWM:") - self.before
    }
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
    // It is idle when what only its start has used is given back.
    tokio::time::sleep(Duration::from_secs(5)).await;
    table.most("resident memory, idle", resident(agent.pid()), 15.0, "MiB");
    let driver = Driver::of(&agent);
    let ids = driver.create_from_eight(&raw()).await;
    let volumes = driver.list_volumes().await;
    table.most("ListVolumes of 1,000, processor time", volumes, 2.0, "ms");
    let snapshots = driver.list_snapshots(&ids).await;
    table.most("ListSnapshots of 40, processor time", snapshots, 0.3, "ms");
    table.most(
        "resident memory, after 1,000 volumes from 8 callers and lists of them",
        resident(agent.pid()),
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
    Driver::of(&agent).list_volumes().await;
    for id in ids {
        agent.controller().delete_volume(delete(&id)).await.unwrap();
    }
    // It gives memory back when no call has come for a second.
    tokio::time::sleep(Duration::from_secs(12)).await;
    table.most(
        "resident memory, idle after all are deleted",
        resident(agent.pid()),
        15.0,
        "MiB",
    );
}
