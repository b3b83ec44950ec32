//! Agents over volume groups of a test's own, and looking at those.

use std::{future::Future, time::Duration};

use drumlin_proto::csi::v1::{
    ControllerGetVolumeRequest, NodeGetVolumeStatsRequest, VolumeCondition,
};
use drumlin_tests::{
    agent::{Agent, Options},
    storage::{Scratch, lvm},
};

use crate::helpers::ok;

/// An agent over a pool that is made with these words, in a group of two disks of so many mebibytes each.
pub(crate) async fn thin(mebibytes: u64, pool: &[&str], options: &str) -> Agent {
    let scratch = Scratch::new();
    let group = scratch.volume_group(mebibytes);
    let path = format!("{group}/pool");
    lvm("lvcreate", &[pool, &["-T", &path]].concat());
    let class = format!("thin: {{volumeGroup: {group}, pool: pool, {options}}}");
    over(scratch, &class).await
}

/// An agent over thick volumes in a group of two disks of so many mebibytes each.
pub(crate) async fn thick(mebibytes: u64, options: &str) -> Agent {
    let scratch = Scratch::new();
    let group = scratch.volume_group(mebibytes);
    over(
        scratch,
        &format!("thick: {{volumeGroup: {group}, {options}}}"),
    )
    .await
}

pub(crate) async fn over(scratch: Scratch, class: &str) -> Agent {
    let options = Options {
        config: Some(format!("classes: [{{name: default, {class}}}]\n")),
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

/// Starts an agent again, as one that stops when it first comes to this fail point.
pub(crate) async fn stop_at(agent: &mut Agent, point: &str) {
    agent.kill();
    agent
        .restart_with(Options::default().stopped_at(point))
        .await;
}

/// The volume group.
pub(crate) fn group(agent: &Agent) -> String {
    agent.scratch.group().unwrap()
}

/// What LVM calls a volume.
pub(crate) fn name_of(id: &str) -> String {
    format!("dl-v-{}", id.rsplit('/').next().unwrap())
}

/// The names of all logical volumes.
pub(crate) fn names(agent: &Agent) -> Vec<String> {
    let listed = lvm("lvs", &["--noheadings", "-o", "lv_name", &group(agent)]);
    let mut names: Vec<String> = listed.lines().map(|line| line.trim().to_owned()).collect();
    names.sort();
    names
}

/// What the agent says of a volume's state.
pub(crate) async fn condition(agent: &Agent, id: &str) -> VolumeCondition {
    let request = ControllerGetVolumeRequest {
        volume_id: id.to_owned(),
    };
    let answer = ok(agent.controller().controller_get_volume(request).await);
    answer.status.unwrap().volume_condition.unwrap()
}

/// The same from the node, where the volume is published.
pub(crate) async fn condition_at(agent: &Agent, id: &str, path: &str) -> VolumeCondition {
    let request = NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        ..NodeGetVolumeStatsRequest::default()
    };
    let answer = ok(agent.node().node_get_volume_stats(request).await);
    answer.volume_condition.unwrap()
}

/// What comes soon, or the test fails: what hangs never comes, and what a busy machine does comes late.
pub(crate) async fn soon<T>(what: &str, answer: impl Future<Output = T>) -> T {
    within(Duration::from_secs(12), what, answer).await
}

/// What comes within some time, or the test fails.
pub(crate) async fn within<T>(time: Duration, what: &str, answer: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(time, answer).await;
    answer.unwrap_or_else(|_| panic!("{what} does not come within {time:?}"))
}
