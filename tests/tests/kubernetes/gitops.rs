//! How tools that apply manifests from a repository see our objects.

use std::process::Output;

use drumlin_tests::{
    agent::Options,
    cluster::Cluster,
    programs::{output, workspace},
    storage::Scratch,
};
use serde_json::Value;

use crate::{
    kustomize::Rendered,
    node::{Node, manifest, volume},
};

/// A value as Lua writes it.
fn lua(value: &Value) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        // Escapes of quotes, backslashes and newlines are the same there.
        Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(all) => {
            let all: Vec<String> = all.iter().map(lua).collect();
            format!("{{{}}}", all.join(", "))
        }
        Value::Object(all) => {
            let all = all.iter();
            let all: Vec<String> = all
                .map(|(key, value)| format!("[\"{key}\"] = {}", lua(value)))
                .collect();
            format!("{{{}}}", all.join(", "))
        }
    }
}

/// What Argo CD's script says of an object.
fn health(scratch: &Scratch, object: &Value) -> String {
    let script = workspace().join("manifests/argocd/health.lua");
    let program = scratch.path().join("health.lua");
    let text = format!(
        "obj = {}\nlocal health = dofile(\"{}\")\nprint(health.status .. \" \" .. health.message)\n",
        lua(object),
        script.display()
    );
    std::fs::write(&program, text).unwrap();
    let said: Output = output("lua5.1", &[&program.to_string_lossy()]);
    assert!(said.status.success(), "{said:?}");
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn argo_cd_sees_what_becomes_of_an_object() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    let space = cluster.namespace();
    let name = cluster.name("node");
    // Nobody follows that node yet.
    let spec = |more: &str| format!("nodeName: {name}\n  capacity: 32Mi\n  {more}");
    space.apply(
        &[
            volume("data", &spec("")),
            volume("mounted", &spec("mount: {path: /srv/x}")),
        ]
        .concat(),
    );
    assert_eq!(
        health(&scratch, &space.get("dv/data")),
        "Progressing not observed yet"
    );
    let mut node = Node::named(&cluster, &name, Options::default()).await;
    let ready = space.until_ready("dv/data");
    assert!(
        health(&scratch, &ready).starts_with("Healthy Created: "),
        "{ready}"
    );
    let denied = space.until_reason("dv/mounted", "HostMountDenied");
    let seen = health(&scratch, &denied);
    assert!(seen.starts_with("Degraded HostMountDenied: "), "{seen}");
    // A new form that nobody has looked at.
    node.agent.kill();
    let wider = r#"{"spec": {"capacity": "64Mi"}}"#;
    space.kubectl(&["patch", "dv/data", "--type=merge", "-p", wider]);
    assert_eq!(
        health(&scratch, &space.get("dv/data")),
        "Progressing not observed yet"
    );
    node.restart_with(&cluster, Options::default()).await;
    space.until_ready("dv/data");
}

/// What a kustomization in a repository is applied as, with the patches that an example has at this path.
fn patched(cluster: &Cluster, example: &str, path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(workspace().join("manifests").join(example)).unwrap();
    let example: Value = serde_yaml::from_str(&text).unwrap();
    let kustomization = serde_json::json!({
        "resources": ["all.yaml"],
        "patches": example.pointer(path).unwrap(),
    });
    let scratch = Scratch::new();
    let write = |name: &str, text: &str| std::fs::write(scratch.path().join(name), text).unwrap();
    write("kustomization.yaml", &kustomization.to_string());
    let all = [
        "Volume",
        "VolumeGroup",
        "Snapshot",
        "GroupSnapshot",
        "SnapshotSchedule",
    ];
    let all = all.map(|kind| manifest(kind, "one", "nodeName: n"));
    let other = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n";
    write("all.yaml", &(all.concat() + other));
    Rendered::in_directory(cluster, scratch.path()).objects
}

#[test]
fn what_disappears_from_a_repository_is_not_destroyed_by_mistake() {
    let cluster = Cluster::of_the_lab();
    for (example, path, annotation, value) in [
        (
            "flux/kustomization.yaml",
            "/spec/patches",
            "kustomize.toolkit.fluxcd.io/prune",
            "disabled",
        ),
        (
            "argocd/application.yaml",
            "/spec/source/kustomize/patches",
            "argocd.argoproj.io/sync-options",
            "Prune=confirm,Delete=confirm",
        ),
    ] {
        let objects = patched(&cluster, example, path);
        assert_eq!(objects.len(), 6);
        for object in objects {
            let annotations = &object["metadata"]["annotations"];
            let is_ours = object["apiVersion"] == "drumlin.dev/v1alpha1";
            let wanted = is_ours.then_some(value);
            assert_eq!(annotations[annotation].as_str(), wanted, "{object}");
            // It is still the object that it was.
            assert_eq!(object["metadata"]["name"], "one");
        }
    }
}
