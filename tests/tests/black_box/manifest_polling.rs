//! A reconciler on a host that has no inotify instance left: `fs.inotify.max_user_instances` of a user namespace of its
//! own, so that no other test has fewer.

use std::{fs, path::Path, process::Child};

use drumlin_tests::{
    agent::{Agent, eventually, write},
    does_not_apply,
    programs::{drumlin, output, program},
};

use crate::{helpers::text, host::small};

/// How `unshare` runs a command that finds no instance.
const WITHOUT_INSTANCES: [&str; 6] = [
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"",
    "sh",
];

/// A reconciler that ends with its value.
struct Reconciler(Child);

impl Drop for Reconciler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the descriptors of a process are of.
fn descriptors(process: u32) -> Vec<String> {
    let all = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let all = all
        .flatten()
        .filter_map(|one| fs::read_link(one.path()).ok());
    all.map(text).collect()
}

#[tokio::test]
async fn a_directory_that_cannot_be_watched_is_polled() {
    let try_it = [&WITHOUT_INSTANCES[..], &["true"]].concat();
    if !output("unshare", &try_it).status.success() {
        return does_not_apply!("this host gives no user namespace with limits of its own");
    }
    let agent = Agent::start().await;
    let manifests = agent.scratch.directory("manifests");
    write(&manifests.join("first.yaml"), &small("first"));
    let log = agent.path("reconciler.log");
    let child = program("unshare")
        .args(WITHOUT_INSTANCES)
        .arg(drumlin())
        .args(["reconcile", "--manifests"])
        .arg(&manifests)
        .arg("--endpoint")
        .arg(agent.socket())
        .arg("--state-dir")
        .arg(agent.path("state"))
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let reconciler = Reconciler(child);
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let polls = "directory cannot be watched; polling it every 30 seconds";
    eventually(|| read(&log), |log| log.contains(polls)).await;
    for name in ["first", "later"] {
        // The first one was there at the start.
        if name == "later" {
            write(&manifests.join("later.yaml"), &small(name));
        }
        let is_ready = |(table, _): &(String, i32)| {
            let mut lines = table.lines();
            lines.any(|line| line.contains(&format!(" {name} ")) && line.contains("True"))
        };
        eventually(|| agent.status(), is_ready).await;
    }
    let opened = descriptors(reconciler.0.id());
    assert!(
        !opened.is_empty() && !opened.iter().any(|one| one.contains("inotify")),
        "{opened:?}"
    );
    assert_eq!(read(&log).matches(polls).count(), 1, "it is told once");
}
