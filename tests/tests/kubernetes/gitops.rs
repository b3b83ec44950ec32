//! How tools that apply manifests from a repository see our objects.

use std::process::Output;

use drumlin_tests::{
    agent::Options,
    cluster::Cluster,
    programs::{output, workspace},
    storage::Scratch,
};
use serde_json::Value;

use crate::node::{Node, volume};

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
