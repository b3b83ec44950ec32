//! One engine behind both sources: the same manifests in a directory and on a server come to the same conditions by the
//! same calls.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::{Options, PATIENCE, eventually},
    cluster::{Cluster, Namespace},
};
use serde_json::Value;

use crate::{host::Host, node::Node};

/// What is applied, the file that it is in, and what each object is to say then.
struct Step {
    file: &'static str,
    text: String,
    reasons: &'static [(&'static str, &'static str)],
}

fn step(
    file: &'static str,
    documents: &[(&str, &str, &str)],
    reasons: &'static [(&'static str, &'static str)],
) -> Step {
    let documents = documents.iter().map(|(kind, name, rest)| {
        let kind = format!("apiVersion: drumlin.dev/v1alpha1\nkind: {kind}\n");
        format!("---\n{kind}metadata:\n  name: {name}\n  {rest}\n")
    });
    Step {
        file,
        text: documents.collect(),
        reasons,
    }
}

/// The scenarios. `NODE` is the node's name, `ROOT` a directory of the test's.
fn table() -> Vec<Step> {
    let parts = [sizes_and_mounts(), copies(), groups(), ends()];
    parts.into_iter().flatten().collect()
}

/// A raw volume that goes with its object.
const BLOCK: &str = "volumeMode: Block\n  deletionPolicy: Delete";

fn volume(capacity: &str, more: &str) -> String {
    format!("labels: {{app: pg}}\nspec:\n  nodeName: NODE\n  capacity: {capacity}\n  {more}")
}

fn from(source: &str, capacity: &str) -> String {
    format!(
        "labels: {{}}\nspec:\n  nodeName: NODE\n  capacity: {capacity}\n  {BLOCK}\n  source: {{{source}}}"
    )
}

fn spec(spec: &str) -> String {
    format!("labels: {{}}\nspec:\n  {spec}")
}

fn absent(rest: &str) -> String {
    format!("annotations: {{drumlin.dev/state: absent}}\n  {rest}")
}

fn sizes_and_mounts() -> Vec<Step> {
    vec![
        step(
            "a",
            &[("Volume", "data", &volume("8Mi", BLOCK))],
            &[("Volume/data", "Created")],
        ),
        step(
            "a",
            &[("Volume", "data", &volume("16Mi", BLOCK))],
            &[("Volume/data", "Created")],
        ),
        step(
            "mounted",
            &[(
                "Volume",
                "mounted",
                &spec("nodeName: NODE\n  capacity: 32Mi\n  mount: {path: ROOT/mnt/one}"),
            )],
            &[("Volume/mounted", "Published")],
        ),
        step(
            "mounted",
            &[(
                "Volume",
                "mounted",
                &spec(
                    "nodeName: NODE\n  capacity: 32Mi\n  mount: {path: ROOT/mnt/two, readOnly: true}",
                ),
            )],
            &[("Volume/mounted", "Published")],
        ),
        step(
            "mounted",
            &[(
                "Volume",
                "mounted",
                &spec("nodeName: NODE\n  capacity: 32Mi"),
            )],
            &[("Volume/mounted", "Created")],
        ),
    ]
}

fn copies() -> Vec<Step> {
    vec![
        // Before its source is there.
        step(
            "b",
            &[("Volume", "again", &from("snapshotName: one", "16Mi"))],
            &[("Volume/again", "DependencyNotFound")],
        ),
        step(
            "c",
            &[(
                "Snapshot",
                "one",
                &spec("nodeName: NODE\n  source: {volumeName: data}"),
            )],
            &[
                ("Snapshot/one", "SnapshotReady"),
                ("Volume/again", "Created"),
            ],
        ),
        step(
            "d",
            &[("Volume", "clone", &from("volumeName: data", "24Mi"))],
            &[("Volume/clone", "Created")],
        ),
        step(
            "e",
            &[("Volume", "small", &from("snapshotName: one", "8Mi"))],
            &[("Volume/small", "InvalidArgument")],
        ),
    ]
}

fn groups() -> Vec<Step> {
    vec![
        step(
            "f",
            &[(
                "VolumeGroup",
                "named",
                &spec(
                    "nodeName: NODE\n  members: [{kind: Volume, name: data}, {kind: Volume, name: clone}]",
                ),
            )],
            &[("VolumeGroup/named", "AllMembersJoined")],
        ),
        step(
            "g",
            &[(
                "VolumeGroup",
                "other",
                &spec("nodeName: NODE\n  members: [{kind: Volume, name: clone}]"),
            )],
            &[("VolumeGroup/other", "MemberConflict")],
        ),
        step(
            "h",
            &[(
                "GroupSnapshot",
                "moment",
                &spec("nodeName: NODE\n  groupName: named"),
            )],
            &[("GroupSnapshot/moment", "SnapshotReady")],
        ),
        step(
            "i",
            &[(
                "Volume",
                "member",
                &from("groupSnapshot: {name: moment, member: clone}", "24Mi"),
            )],
            &[("Volume/member", "Created")],
        ),
        step(
            "j",
            &[(
                "Volume",
                "nobody",
                &from("groupSnapshot: {name: moment, member: nobody}", "24Mi"),
            )],
            &[("Volume/nobody", "InvalidArgument")],
        ),
    ]
}

fn ends() -> Vec<Step> {
    vec![
        step(
            "h",
            &[(
                "GroupSnapshot",
                "moment",
                &absent("labels: {}\nspec:\n  nodeName: NODE\n  groupName: named"),
            )],
            &[("GroupSnapshot/moment", "Deleted")],
        ),
        step(
            "f",
            &[(
                "VolumeGroup",
                "named",
                &absent(
                    "labels: {}\nspec:\n  nodeName: NODE\n  members: [{kind: Volume, name: data}, {kind: Volume, name: clone}]",
                ),
            )],
            &[
                ("VolumeGroup/named", "Deleted"),
                ("VolumeGroup/other", "AllMembersJoined"),
            ],
        ),
        step(
            "a",
            &[("Volume", "data", &absent(&volume("16Mi", BLOCK)))],
            &[("Volume/data", "Deleted")],
        ),
        step(
            "mounted",
            &[(
                "Volume",
                "mounted",
                &absent("labels: {}\nspec:\n  nodeName: NODE\n  capacity: 32Mi"),
            )],
            &[("Volume/mounted", "Released")],
        ),
    ]
}

/// The conditions of an object: of each type what it is, and why.
fn conditions(object: &Value) -> BTreeMap<String, (String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    all.into_iter()
        .flatten()
        .map(|one| {
            (
                text(&one["type"]),
                (text(&one["status"]), text(&one["reason"])),
            )
        })
        .collect()
}

/// The changes that a log tells of: how often each method succeeded. What was refused in between is a matter of time, and
/// what stays refused is in the conditions.
fn calls(log: &str) -> BTreeMap<String, usize> {
    let mut calls = BTreeMap::new();
    for line in log.lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let (Some(method), Some(code)) = (line["rpc.method"].as_str(), line["rpc.code"].as_str())
        else {
            continue;
        };
        let changes = [
            "Create",
            "Delete",
            "Modify",
            "Stage",
            "Unstage",
            "Publish",
            "Unpublish",
            "Expand",
        ];
        if !changes.iter().any(|word| method.contains(word)) {
            continue;
        }
        if code == "Ok" {
            *calls.entry(method.to_owned()).or_default() += 1;
        }
    }
    calls
}

/// Waits until all objects of a step say what they should; says their conditions.
async fn settled(
    step: &Step,
    find: impl Fn(&str) -> Value,
) -> Vec<BTreeMap<String, (String, String)>> {
    let mut all = Vec::new();
    for (object, reason) in step.reasons {
        let begun = Instant::now();
        loop {
            let found = find(object);
            let conditions = conditions(&found);
            let is_newest = found["metadata"]["generation"].is_null()
                || found["metadata"]["generation"] == found["status"]["observedGeneration"];
            if is_newest
                && conditions
                    .get("Ready")
                    .is_some_and(|(_, own)| own == reason)
            {
                all.push(conditions);
                break;
            }
            assert!(
                begun.elapsed() < 2 * PATIENCE,
                "{object} is not {reason}: {found:#}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    all
}

fn told() -> Options {
    Options {
        arguments: [
            "--log-level=debug",
            "--log-format=json",
            "--allow-host-mounts",
        ]
        .map(str::to_owned)
        .into(),
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_and_a_server_come_to_the_same_by_the_same_calls() {
    let cluster = Cluster::of_the_lab();
    let space: Namespace<'_> = cluster.namespace();
    let (host, node) = (Host::with(told()).await, Node::with(&cluster, told()).await);
    for (number, step) in table().iter().enumerate() {
        let of = |name: &str, agent: &drumlin_tests::agent::Agent| {
            let root = agent.scratch.path().to_string_lossy().into_owned();
            step.text.replace("NODE", name).replace("ROOT", &root)
        };
        host.write(&format!("{}.yaml", step.file), &[of("node-a", &host.agent)]);
        space.apply(&of(&node.name, &node.agent));
        let in_directory = settled(step, |object| {
            let (kind, name) = object.split_once('/').unwrap();
            host.find(kind, name).unwrap_or_default()
        });
        let in_directory = in_directory.await;
        let on_server = settled(step, |object| {
            let (kind, name) = object.split_once('/').unwrap();
            space
                .find(&format!("{kind}.drumlin.dev/{name}").to_lowercase())
                .unwrap_or_default()
        });
        assert_eq!(
            in_directory,
            on_server.await,
            "step {number}: {:?}",
            step.reasons
        );
        // What follows from it is done soon, too.
        let both = || (calls(&host.agent.log()), calls(&node.agent.log()));
        eventually(both, |(directory, server)| directory == server).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(calls(&host.agent.log()), calls(&node.agent.log()));
    let all = calls(&node.agent.log());
    assert!(all.len() > 12, "{all:?}");
}
