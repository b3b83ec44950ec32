//! An agent with a thousand manifests: made, changed, planned, and with nothing to do.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::{Agent, Options, write},
    requests::mounted,
    scrape::scrape,
    storage::{Kind, Scratch},
};
use nix::sys::signal::Signal;

use crate::{
    driver::{Driver, VOLUMES},
    idle::{done, millis, minute},
    measure::{Table, median, timed},
    process::{agent_with, resident},
};

/// An agent with a directory of manifests, and how its calls are counted.
struct Host {
    agent: Agent,
    manifests: PathBuf,
}

/// The manifest of one of the volumes.
fn manifest(index: usize, capacity: &str) -> String {
    format!(
        "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata:\n  name: v{index}\nspec:\n  capacity: {capacity}\n  fsType: ext4\n"
    )
}

impl Host {
    async fn start() -> Self {
        let scratch = Scratch::new();
        let images = scratch.file_system("images", Kind::Ext4, 4 << 10);
        // ext4 looks for a new inode past all those that were freed in the last minutes: those of the round before.
        scratch.file_system("state", Kind::Ext4, 1 << 10);
        let manifests = scratch.directory("manifests");
        let metrics = scratch.path().join("metrics.sock");
        let options = Options {
            config: Some(format!(
                "classes: [{{name: default, directory: {{path: {}}}}}]\n",
                images.display()
            )),
            arguments: [
                format!("--manifests={}", manifests.display()),
                format!("--metrics-listen=unix:{}", metrics.display()),
                "--log-level=warn".to_owned(),
            ]
            .into(),
            ..Options::default()
        };
        Self {
            agent: Agent::with(scratch, options).await,
            manifests,
        }
    }

    fn file(&self, index: usize) -> PathBuf {
        self.manifests.join(format!("v{index}.yaml"))
    }

    /// The state file of one of the volumes, once it is ready.
    fn ready(&self, index: usize) -> Option<serde_json::Value> {
        let path = format!("state/reconciler/objects/Volume/default/v{index}.json");
        let text = fs::read(self.agent.path(&path)).ok()?;
        let object: serde_json::Value = serde_json::from_slice(&text).ok()?;
        let conditions = object["status"]["conditions"].as_array()?.clone();
        let is_ready = |one: &serde_json::Value| one["type"] == "Ready" && one["status"] == "True";
        conditions.iter().any(is_ready).then_some(object)
    }

    /// Waits until all volumes are ready. What is ready is not looked at again, so that little is read.
    async fn until_ready(&self) {
        for index in 0..VOLUMES {
            while self.ready(index).is_none() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }

    /// The number of calls that the agent has answered.
    async fn calls(&self) -> u64 {
        let answer = scrape(&self.agent.path("metrics.sock")).await;
        let counts = answer
            .lines()
            .filter(|line| line.starts_with("drumlin_rpc_duration_seconds_count"));
        let counts = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        // Rounded: counters are floats in this format.
        format!("{:.0}", counts.sum::<f64>()).parse().unwrap()
    }

    /// The image file of one of the volumes.
    fn image(&self, index: usize) -> PathBuf {
        let object = self.ready(index).unwrap();
        let handle = object["status"]["volumeHandle"]
            .as_str()
            .unwrap()
            .to_owned();
        let key = handle.rsplit('/').next().unwrap();
        let path = format!("images/volumes/{key}/image");
        self.agent.path(&path)
    }

    fn plan(&self) -> i32 {
        let arguments = ["plan", "--manifests"];
        let manifests = self.manifests.to_string_lossy().into_owned();
        let (state, socket) = (self.agent.path("state"), self.agent.socket());
        let socket = format!("unix://{}", socket.display());
        let more = [
            "--state-dir",
            &state.to_string_lossy(),
            "--endpoint",
            &socket,
        ]
        .map(str::to_owned);
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let output = self
            .agent
            .command(&[&arguments[..], &[&manifests], &more].concat());
        output.status.code().unwrap()
    }
}

/// The same calls without manifests, by as many callers as the reconciler has workers.
async fn bare() -> Duration {
    let agent = agent_with(Kind::Ext4, 4 << 10, &["--log-level=warn"]).await;
    let driver = Driver::of(&agent);
    timed(driver.create_from_eight(&mounted("ext4"))).await.1
}

/// From a thousand new manifests to a thousand ready volumes.
async fn creation(host: &Host) -> Duration {
    let aside = host.agent.scratch.directory("aside");
    for index in 0..VOLUMES {
        let text = manifest(index, "16Mi");
        write(&aside.join(format!("v{index}.yaml")), &text);
    }
    let begun = Instant::now();
    for index in 0..VOLUMES {
        fs::rename(aside.join(format!("v{index}.yaml")), host.file(index)).unwrap();
    }
    host.until_ready().await;
    begun.elapsed()
}

/// From the edit of a manifest to the effect of its call.
async fn edit(host: &Host, index: usize) -> Duration {
    let image = host.image(index);
    let size = |path: &Path| fs::metadata(path).unwrap().size();
    let before = size(&image);
    let begun = Instant::now();
    write(&host.file(index), &manifest(index, "20Mi"));
    while size(&image) == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    begun.elapsed()
}

pub(crate) async fn manifests(table: &mut Table) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut last = None;
    // In turns, each on a new file system.
    for _ in 0..3 {
        drop(last.take());
        theirs.push(bare().await);
        let host = Host::start().await;
        ours.push(creation(&host).await);
        last = Some(host);
    }
    let host = last.unwrap();
    table.ratio(
        "1,000 new manifests until all volumes are ready, beside 1,000 CreateVolume from as many callers",
        (median(ours), median(theirs)),
        2.0,
    );
    tokio::time::sleep(Duration::from_secs(3)).await;
    unchanged(table, &host).await;
    let mut edits = Vec::new();
    for index in 0..15 {
        edits.push(edit(&host, index * 60).await);
        tokio::time::sleep(Duration::from_millis(1500)).await;
    }
    let most = edits.iter().max().unwrap().as_secs_f64() * 1000.0;
    table.most(
        "an edit of one among 1,000 manifests to the effect of its call, longest of 15",
        most,
        600.0,
        "ms",
    );
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut plans = Vec::new();
    for _ in 0..9 {
        let begun = Instant::now();
        assert_eq!(host.plan(), 0);
        plans.push(begun.elapsed());
    }
    let plan = median(plans).as_secs_f64() * 1000.0;
    table.most(
        "`drumlin plan` of 1,000 manifests, nothing to do",
        plan,
        200.0,
        "ms",
    );
    // It gives memory back when no call has come for a second.
    tokio::time::sleep(Duration::from_secs(12)).await;
    table.most(
        "resident memory with 1,000 objects",
        resident(host.agent.pid()),
        30.0,
        "MiB",
    );
    minute(table, &host.agent, "idle with 1,000 manifests").await;
}

/// A pass over what has not changed.
async fn unchanged(table: &mut Table, host: &Host) {
    let (before, calls) = (done(host.agent.pid()), host.calls().await);
    host.agent.signal(Signal::SIGHUP);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (after, more) = (done(host.agent.pid()), host.calls().await);
    table.most(
        "a pass over 1,000 unchanged manifests, processor time",
        millis(after.ticks - before.ticks),
        100.0,
        "ms",
    );
    let more = (more - calls) as f64;
    table.most("a pass over 1,000 unchanged manifests, RPCs", more, 0.0, "");
}
