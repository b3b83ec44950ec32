//! A host whose clock runs fast, with a schedule of snapshots.

use std::{collections::BTreeSet, fs, path::PathBuf, time::SystemTime};

use drumlin_tests::{
    agent::{Options, eventually, write},
    storage::Scratch,
};
use serde_json::Value;

use crate::{
    helpers::text,
    host::{Host, object, small},
};

/// So many times as fast does the clock run.
const FACTOR: f64 = 60.0;

/// A host whose clock runs fast.
pub(crate) struct Timed {
    pub(crate) host: Host,
    clock: PathBuf,
}

impl Timed {
    pub(crate) async fn start() -> Self {
        let scratch = Scratch::new();
        let clock = scratch.path().join("clock");
        let timed = |host, clock| Self { host, clock };
        let now = since_epoch();
        write(&clock, &now.to_string());
        let options = options(&clock, None);
        timed(Host::over(scratch, options).await, clock)
    }

    /// With the volume `v` and a schedule of it.
    pub(crate) async fn with_volume(retention: &str) -> Self {
        let timed = Self::start().await;
        timed.host.write("v.yaml", &[small("v")]);
        timed.host.until("v", &["True"]).await;
        timed.host.write("s.yaml", &[schedule(retention)]);
        timed
    }

    pub(crate) async fn restart(&mut self) {
        let options = options(&self.clock, None);
        self.host.restart_with(options).await;
    }

    /// Starts it again to be killed at a fail point, which `lead` has it come to if it answers before.
    pub(crate) async fn restart_until_killed(&mut self, point: &str, lead: impl FnOnce(&Self)) {
        let options = options(&self.clock, Some(point));
        if self.host.try_restart_with(options).await {
            lead(self);
            self.host.agent.wait_until_killed().await;
        }
    }

    /// Moves the clock, in seconds. It is heard of at once, as if the kernel had told of it.
    pub(crate) fn set_clock(&self, by: f64) {
        let base: f64 = fs::read_to_string(&self.clock).unwrap().parse().unwrap();
        write(&self.clock, &(base - by / (FACTOR - 1.0)).to_string());
    }

    /// Moves the clock to this minute of the next hour, so many hours later.
    pub(crate) fn to_minute(&self, hours: f64, minute: f64) {
        let base: f64 = fs::read_to_string(&self.clock).unwrap().parse().unwrap();
        let now = base + (since_epoch() - base) * FACTOR;
        let hour = 3600.0;
        let then = (now / hour).floor() * hour + (hours + 1.0) * hour + minute * 60.0;
        self.set_clock(then - now);
    }

    pub(crate) fn status(&self) -> Value {
        // Not before the first scan.
        let schedule = self.host.find("SnapshotSchedule", "s");
        schedule.unwrap_or_default()["status"].clone()
    }

    /// Waits until this many snapshots have been taken since now.
    pub(crate) async fn taken(&self, count: usize) {
        let mut names = BTreeSet::new();
        let name = || {
            let name = self.status()["lastSnapshotName"]
                .as_str()
                .map(str::to_owned);
            names.extend(name);
            names.len()
        };
        eventually(name, |len| *len > count).await;
    }

    /// The snapshots of the schedule, as records.
    pub(crate) fn children(&self) -> Vec<Value> {
        let folder = self
            .host
            .agent
            .path("state/reconciler/objects/Snapshot/default");
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        let texts = files.filter(|file| file.path().extension().is_some_and(|end| end == "json"));
        let texts = texts.filter_map(|file| fs::read(file.path()).ok());
        let mut found: Vec<Value> = texts
            .filter_map(|text| serde_json::from_slice(&text).ok())
            .collect();
        found.sort_by_key(|record: &Value| record["metadata"]["name"].to_string());
        found
    }
}

/// As many snapshots as the retention keeps, perhaps with one that was just taken; all can be restored.
pub(crate) fn are_ready(children: &[Value], kept: usize) -> bool {
    let is_ready = |child: &Value| child["status"]["readyToUse"] == true;
    (kept..=kept + 1).contains(&children.len()) && children.iter().all(is_ready)
}

fn since_epoch() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs_f64()
}

fn options(clock: &std::path::Path, point: Option<&str>) -> Options {
    let clock = ("DRUMLIN_CLOCK".to_owned(), text(clock.to_owned()));
    let factor = ("DRUMLIN_TIME_LAPSE".to_owned(), FACTOR.to_string());
    let options = Options {
        environment: vec![clock, factor],
        ..Options::default()
    };
    options.perhaps_killed_at(point)
}

pub(crate) fn schedule(more: &str) -> String {
    object(
        "SnapshotSchedule",
        "s",
        "",
        &format!("target: {{volumeName: v}}, schedule: '* * * * *', jitterSeconds: 0, {more}"),
    )
}
