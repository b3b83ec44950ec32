//! Retained data has a way back, which only an administrator can open.

use std::fs;

use drumlin_tests::{
    agent::{Agent, Options, eventually},
    cluster::{Cluster, Namespace},
    storage::Scratch,
};
use serde_json::Value;

use crate::{
    node::{Node, manifest},
    owners::make_again,
    rbac::{said, two_nodes},
};

/// Runs a command beside the agent, which must succeed.
fn done(agent: &Agent, command: &str, arguments: &[&str]) -> String {
    let state = agent.path("state").to_string_lossy().into_owned();
    let endpoint = agent.socket().to_string_lossy().into_owned();
    let ours = [command, "--state-dir", &state, "--endpoint", &endpoint];
    let output = agent.command(&[&ours, arguments].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn kept(agent: &Agent) -> Vec<Value> {
    let kept: Value = serde_json::from_str(&done(agent, "kept", &["-o", "json"])).unwrap();
    kept["objects"].as_array().unwrap().clone()
}

fn handle(object: &Value, field: &str) -> String {
    object["status"][field].as_str().unwrap().to_owned()
}

fn annotate(space: &Namespace<'_>, object: &str, handle: &str) {
    let annotation = format!("drumlin.dev/adopt={handle}");
    space.kubectl(&["annotate", object, &annotation]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_former_namespace_had_is_given_by_an_administrator_and_by_no_tenant() {
    let (cluster, scratch) = (Cluster::own(), Scratch::new());
    cluster.install();
    let (one, _) = two_nodes(&cluster);
    let account = cluster.as_account(&scratch, "drumlin-agent", Some(&one));
    let node = Node {
        agent: Agent::with(
            Scratch::new(),
            Options {
                node: Some(one.clone()),
                arguments: account.arguments(),
                ..Options::default()
            },
        )
        .await,
        name: one,
    };
    let space = cluster.namespace();
    let data = node.volume("data", "32Mi", "");
    space.apply(&data);
    let had = handle(&space.until_ready("dv/data"), "volumeHandle");
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    assert_eq!(kept(&node.agent)[0]["state"], "Released");
    make_again(&cluster, &space);
    space.apply(&data);
    let refused = space.until_reason("dv/data", "RetainedVolumeExists");
    assert!(refused.to_string().contains(&had), "{refused}");

    // Who may write volumes of a namespace may not say whose they are.
    let grant = [
        "create",
        "rolebinding",
        "tenant",
        "--clusterrole=drumlin-volumes",
        "--user=tenant",
    ];
    space.kubectl(&grant);
    let annotation = format!("drumlin.dev/adopt={had}");
    let ask = ["-n", &space.name, "--as=tenant", "annotate", "dv/data"];
    let label = cluster.try_kubectl(&[&ask[..], &["a=b"]].concat());
    assert!(label.status.success(), "{label:?}");
    let try_it = || cluster.try_kubectl(&[&ask[..], &["--dry-run=server", &annotation]].concat());
    // A policy holds a moment after it was made.
    eventually(try_it, |tried| {
        said(tried).contains("is for administrators")
    })
    .await;
    let tried = cluster.try_kubectl(&[&ask[..], &[&annotation]].concat());
    assert!(!tried.status.success(), "{tried:?}");

    annotate(&space, "dv/data", &had);
    assert_eq!(handle(&space.until_ready("dv/data"), "volumeHandle"), had);
    assert!(kept(&node.agent).is_empty());

    // The same by a command on the node.
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    make_again(&cluster, &space);
    space.apply(&data);
    space.until_reason("dv/data", "RetainedVolumeExists");
    let name = format!("{}/data", space.name);
    done(&node.agent, "adopt", &[&had, &name]);
    assert_eq!(handle(&space.until_ready("dv/data"), "volumeHandle"), had);
    assert_eq!(node.holds().await, (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_built_anew_takes_no_moment_again_and_has_all_by_its_administrators_word()
{
    let cluster = Cluster::of_the_lab();
    let (mut node, space) = (Node::start(&cluster).await, cluster.namespace());
    let all = [
        node.volume("data", "32Mi", ""),
        manifest("Snapshot", "before-upgrade", "source: {volumeName: data}"),
    ]
    .concat();
    space.apply(&all);
    let volume = handle(&space.until_ready("dv/data"), "volumeHandle");
    let moment = handle(&space.until_ready("dsnap/before-upgrade"), "snapshotHandle");
    node.agent.kill();
    for object in ["dsnap/before-upgrade", "dv/data"] {
        space.kubectl(&["delete", object, "--wait=false"]);
        let bare = r#"{"metadata": {"finalizers": null}}"#;
        space.kubectl(&["patch", object, "--type=merge", "-p", bare]);
    }
    make_again(&cluster, &space);
    fs::remove_dir_all(node.agent.path("state/reconciler")).unwrap();
    node.restart_with(&cluster, Options::default()).await;
    space.apply(&all);
    space.until_reason("dv/data", "RetainedVolumeExists");
    let states: Vec<Value> = kept(&node.agent)
        .iter()
        .map(|row| row["state"].clone())
        .collect();
    assert_eq!(states, ["Left", "Left"]);
    // This agent's account may say whose anything is, so that its annotation proves nothing.
    annotate(&space, "dv/data", &volume);
    space.until_reason("dv/data", "AdoptionUnguarded");
    let name = |name: &str| format!("{}/{name}", space.name);
    done(&node.agent, "adopt", &[&volume, &name("data")]);
    assert_eq!(
        handle(&space.until_ready("dv/data"), "volumeHandle"),
        volume
    );
    space.until_reason("dsnap/before-upgrade", "RetainedSnapshotExists");
    done(&node.agent, "adopt", &[&moment, &name("before-upgrade")]);
    let again = space.until_ready("dsnap/before-upgrade");
    assert_eq!(handle(&again, "snapshotHandle"), moment);
    assert_eq!(node.holds().await, (1, 1));
    assert!(kept(&node.agent).is_empty());
}
