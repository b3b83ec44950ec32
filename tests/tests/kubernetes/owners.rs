//! One object in two places: a directory and a server, a namespace and the one that takes its name.

use drumlin_tests::{
    agent::{Agent, Options, write},
    cluster::{Cluster, Namespace},
    storage::Scratch,
};
use std::{fs, path::PathBuf};

use crate::{
    helpers::bytes_of,
    node::{Node, manifest},
};

/// A node whose agent keeps a directory of manifests, too.
async fn with_directory(cluster: &Cluster) -> (Node, PathBuf) {
    let scratch = Scratch::new();
    let manifests = scratch.directory("manifests");
    let name = cluster.name("node");
    let mut arguments = cluster.arguments();
    arguments.extend([
        "--manifests".to_owned(),
        manifests.to_string_lossy().into_owned(),
    ]);
    let options = Options {
        node: Some(name.clone()),
        arguments,
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    (Node { agent, name }, manifests)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_becomes_an_object_of_the_server_and_a_file_again() {
    let cluster = Cluster::of_the_lab();
    let ((node, manifests), space) = (with_directory(&cluster).await, cluster.namespace());
    let manifest = node.volume("data", "32Mi", "");
    let namespaced = manifest.replace(
        "name: data",
        &format!("name: data, namespace: {}", space.name),
    );
    let file = manifests.join("data.yaml");
    write(&file, &namespaced);
    let shown = || node.agent.status().0;
    drumlin_tests::agent::eventually(shown, |shown| shown.contains("True")).await;

    // The server's object waits until the file has gone, and has the same volume then.
    space.apply(&manifest);
    space.until_reason("dv/data", "OwnedByDirectory");
    assert_eq!(node.holds().await, (1, 0));
    // A directory without a single file would be an accident.
    write(&manifests.join("other.yaml"), "# nothing yet\n");
    fs::remove_file(&file).unwrap();
    // That the file is away hands over nothing: it may come back.
    let waits = space.until("dv/data", |now| {
        now.to_string().contains("drumlin handover")
    });
    assert_eq!(waits["status"]["volumeHandle"], serde_json::json!(null));
    hand_over(&node, &space);
    let ready = space.until_ready("dv/data");
    assert_eq!(node.holds().await, (1, 0));
    let handle = ready["status"]["volumeHandle"].as_str().unwrap().to_owned();

    // A file beside the object is refused, in words, and waits until the object has gone.
    write(&file, &namespaced);
    drumlin_tests::agent::eventually(shown, |shown| shown.contains("comes from the API server"))
        .await;
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    drumlin_tests::agent::eventually(shown, |shown| shown.contains("OwnedByCluster")).await;
    let adopted = namespaced.replace(
        "name: data,",
        &format!("name: data, annotations: {{drumlin.dev/adopt: {handle}}},"),
    );
    write(&file, &adopted);
    let is_back = |shown: &String| shown.contains("True") && !shown.contains("INVALID");
    drumlin_tests::agent::eventually(shown, is_back).await;
    assert_eq!(node.holds().await, (1, 0));
    let state = node.agent.path(&format!(
        "state/reconciler/objects/Volume/{}/data.json",
        space.name
    ));
    let state = fs::read_to_string(state).unwrap();
    assert!(state.contains(&handle), "{state}");
}

/// Says on a node that what is kept of volume `data` goes to whoever asks for it.
fn hand_over(node: &Node, space: &Namespace<'_>) {
    let state = node.agent.path("state").to_string_lossy().into_owned();
    let name = format!("{}/data", space.name);
    let words = ["handover", "Volume", &name, "--state-dir", &state];
    let said = node.agent.command(&words);
    assert!(said.status.success(), "{said:?}");
}

/// Ends a namespace, and makes another one of its name. No controller runs here that would see to the end.
pub(crate) fn make_again(cluster: &Cluster, space: &Namespace<'_>) {
    cluster.kubectl(&["delete", "namespace", &space.name, "--wait=false"]);
    let bare = format!(
        "{{\"apiVersion\": \"v1\", \"kind\": \"Namespace\", \"metadata\": {{\"name\": \"{}\"}}, \"spec\": {{\"finalizers\": []}}}}",
        space.name
    );
    let finalize = format!("/api/v1/namespaces/{}/finalize", space.name);
    let ended = cluster.try_with_input(&["replace", "--raw", &finalize, "-f", "-"], &bare);
    assert!(ended.status.success(), "{ended:?}");
    cluster.kubectl(&["create", "namespace", &space.name]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_made_again_has_nothing_of_the_former_one() {
    let cluster = Cluster::of_the_lab();
    let (node, space) = (Node::start(&cluster).await, cluster.namespace());
    space.apply(&node.volume("data", "32Mi", "deletionPolicy: Retain"));
    space.until_ready("dv/data");
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    make_again(&cluster, &space);

    space.apply(&node.volume("data", "32Mi", ""));
    let refused = space.until_reason("dv/data", "RetainedVolumeExists");
    let message = refused.to_string();
    assert!(message.contains("drumlin.dev/adopt: "), "{message}");
    assert_eq!(refused["status"]["volumeHandle"], serde_json::json!(null));
    assert_eq!(node.holds().await, (1, 0));
    // It can be deleted, and takes nothing with it.
    space.kubectl(&[
        "patch",
        "dv/data",
        "--type=merge",
        "-p",
        r#"{"spec": {"deletionPolicy": "Delete"}}"#,
    ]);
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    assert_eq!(node.holds().await, (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_file_has_handed_over_and_was_released_is_no_later_namespaces() {
    let cluster = Cluster::of_the_lab();
    let ((node, manifests), space) = (with_directory(&cluster).await, cluster.namespace());
    let manifest = node.volume("data", "32Mi", "");
    let file = manifests.join("data.yaml");
    let named = format!("name: data, namespace: {}", space.name);
    write(&file, &manifest.replace("name: data", &named));
    let shown = || node.agent.status().0;
    drumlin_tests::agent::eventually(shown, |shown| shown.contains("True")).await;
    space.apply(&manifest);
    space.until_reason("dv/data", "OwnedByDirectory");
    write(&manifests.join("other.yaml"), "# nothing yet\n");
    fs::remove_file(&file).unwrap();
    drumlin_tests::agent::eventually(shown, |shown| shown.contains("Orphan")).await;
    hand_over(&node, &space);
    space.until_ready("dv/data");
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    make_again(&cluster, &space);

    space.apply(&manifest);
    let refused = space.until("dv/data", |now| {
        drumlin_tests::cluster::condition(now, "Stalled").is_some()
    });
    assert_eq!(refused["status"]["volumeHandle"], serde_json::json!(null));
    assert_eq!(node.holds().await, (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_released_and_shall_be_deleted_since_is_deleted_before_it_goes() {
    let cluster = Cluster::of_the_lab();
    let (mut node, space) = (Node::start(&cluster).await, cluster.namespace());
    space.apply(&node.volume("data", "32Mi", "deletionPolicy: Retain"));
    space.until_ready("dv/data");
    space.kubectl(&["annotate", "dv/data", "drumlin.dev/state=absent"]);
    space.until_reason("dv/data", "Released");
    node.agent.kill();
    let delete = r#"{"spec": {"deletionPolicy": "Delete"}}"#;
    space.kubectl(&["patch", "dv/data", "--type=merge", "-p", delete]);
    space.kubectl(&["delete", "dv/data", "--wait=false"]);
    node.restart_with(&cluster, Options::default()).await;
    space.until_gone("dv/data");
    assert_eq!(node.holds().await, (0, 0));
}

/// Deletes the volume `data` while the agent is away, and has the server forget it.
fn take_by_force(node: &mut Node, space: &Namespace<'_>) {
    node.agent.kill();
    space.kubectl(&["delete", "dv/data", "--wait=false"]);
    let bare = r#"{"metadata": {"finalizers": null}}"#;
    space.kubectl(&["patch", "dv/data", "--type=merge", "-p", bare]);
    space.until_gone("dv/data");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_from_the_server_by_force_is_kept_and_nobody_elses() {
    let cluster = Cluster::of_the_lab();
    let (mut node, space) = (Node::start(&cluster).await, cluster.namespace());
    space.apply(&node.volume("data", "32Mi", "deletionPolicy: Delete"));
    space.until_ready("dv/data");
    take_by_force(&mut node, &space);
    make_again(&cluster, &space);
    node.restart_with(&cluster, Options::default()).await;
    // Neither the name nor what is made of it leads the new namespace to the former one's bytes.
    space.apply(
        &[
            node.volume("data", "32Mi", ""),
            manifest(
                "Snapshot",
                "moment",
                &format!("nodeName: {}\n  source: {{volumeName: data}}", node.name),
            ),
            manifest(
                "VolumeGroup",
                "all",
                &format!("nodeName: {}\n  selector: {{}}", node.name),
            ),
        ]
        .concat(),
    );
    space.until_reason("dv/data", "RetainedVolumeExists");
    space.until_reason("dsnap/moment", "DependencyNotFound");
    space.until_reason("dvg/all", "MembersPending");
    assert_eq!(node.holds().await, (1, 0));
    space.kubectl(&["delete", "dv,dsnap,dvg", "--all", "--timeout=60s"]);
    assert_eq!(node.holds().await, (1, 0));
    // The same namespace has it back.
    assert!(node.agent.status().0.contains("Orphan"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_taken_by_force_and_applied_again_has_its_volume_back() {
    let cluster = Cluster::of_the_lab();
    let (mut node, space) = (Node::start(&cluster).await, cluster.namespace());
    space.apply(&node.volume("data", "32Mi", "deletionPolicy: Delete"));
    let handle = space.until_ready("dv/data")["status"]["volumeHandle"].clone();
    // The deletion is asked for while the agent is away, and taken back by force: nothing of it may be done.
    take_by_force(&mut node, &space);
    space.apply(&node.volume("data", "48Mi", "deletionPolicy: Delete"));
    node.restart_with(&cluster, Options::default()).await;
    let back = space.until_ready("dv/data");
    assert_eq!(back["status"]["volumeHandle"], handle);
    assert_eq!(back["status"]["capacity"], "48Mi");
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    assert_eq!(node.holds().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_has_lost_its_state_finds_what_there_is_and_replaces_nothing() {
    let cluster = Cluster::of_the_lab();
    let (mut node, space) = (Node::start(&cluster).await, cluster.namespace());
    space.apply(
        &[
            node.volume("kept", "32Mi", "deletionPolicy: Delete"),
            node.volume("lost", "32Mi", "deletionPolicy: Delete"),
            manifest("Snapshot", "moment", "source: {volumeName: kept}"),
        ]
        .concat(),
    );
    let handles: Vec<_> = [
        ("dv/kept", "volumeHandle"),
        ("dv/lost", "volumeHandle"),
        ("dsnap/moment", "snapshotHandle"),
    ]
    .into_iter()
    .map(|(object, field)| space.until_ready(object)["status"][field].clone())
    .collect();
    node.agent.kill();
    fs::remove_dir_all(node.agent.path("state/reconciler")).unwrap();
    let image = bytes_of(&node.agent, handles[1].as_str().unwrap());
    fs::remove_dir_all(image.parent().unwrap()).unwrap();
    node.restart_with(&cluster, Options::default()).await;
    space.until_reason("dv/lost", "VolumeLost");
    assert_eq!(
        space.until_ready("dv/kept")["status"]["volumeHandle"],
        handles[0]
    );
    assert_eq!(
        space.until_ready("dsnap/moment")["status"]["snapshotHandle"],
        handles[2]
    );
    assert_eq!(node.holds().await, (1, 1));
    space.kubectl(&["delete", "dsnap,dv", "--all", "--timeout=60s"]);
    assert_eq!(node.holds().await, (0, 0));
}
