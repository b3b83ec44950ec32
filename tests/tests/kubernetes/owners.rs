//! One object in two places: a directory and a server, a namespace and the one that takes its name.

use drumlin_tests::{
    agent::{Agent, Options, write},
    cluster::Cluster,
    storage::Scratch,
};
use std::{fs, path::PathBuf};

use crate::node::Node;

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
    let ready = space.until_ready("dv/data");
    assert_eq!(node.holds().await, (1, 0));
    let handle = ready["status"]["volumeHandle"].as_str().unwrap().to_owned();

    // A file beside the object is refused, in words, and waits until the object has gone.
    write(&file, &namespaced);
    drumlin_tests::agent::eventually(shown, |shown| {
        shown.contains("is an object of the API server")
    })
    .await;
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_made_again_has_nothing_of_the_former_one() {
    let cluster = Cluster::of_the_lab();
    let (node, space) = (Node::start(&cluster).await, cluster.namespace());
    space.apply(&node.volume("data", "32Mi", "deletionPolicy: Retain"));
    space.until_ready("dv/data");
    space.kubectl(&["delete", "dv/data", "--timeout=30s"]);
    // No controller runs here that would see to a namespace's end.
    cluster.kubectl(&["delete", "namespace", &space.name, "--wait=false"]);
    let bare = format!(
        "{{\"apiVersion\": \"v1\", \"kind\": \"Namespace\", \"metadata\": {{\"name\": \"{}\"}}, \"spec\": {{\"finalizers\": []}}}}",
        space.name
    );
    let finalize = format!("/api/v1/namespaces/{}/finalize", space.name);
    let ended = cluster.try_with_input(&["replace", "--raw", &finalize, "-f", "-"], &bare);
    assert!(ended.status.success(), "{ended:?}");
    cluster.kubectl(&["create", "namespace", &space.name]);

    space.apply(&node.volume("data", "32Mi", ""));
    let refused = space.until("dv/data", |now| {
        drumlin_tests::cluster::condition(now, "Stalled").is_some()
    });
    let message = refused.to_string();
    assert!(message.contains("another namespace"), "{message}");
    assert_eq!(refused["status"]["volumeHandle"], serde_json::json!(null));
    assert_eq!(node.holds().await, (1, 0));
}
