//! State files, manifests, and what they are about.

use std::fs;

use drumlin_tests::{
    agent::{Agent, Options, eventually},
    doctor::Diagnosis,
    programs::run,
    requests::raw,
};

use crate::{
    helpers::{home, text, volume},
    host::{Host, absent, small},
};

/// With the directory of manifests, which an agent that does not run is not asked for.
fn diagnose(host: &Host) -> Diagnosis {
    let manifests = format!("--manifests={}", host.manifests.display());
    Diagnosis::with(&host.agent, &[&manifests])
}

#[tokio::test]
async fn an_object_without_a_manifest_is_an_orphan() {
    let host = Host::start().await;
    host.write("a.yaml", &[small("a")]);
    host.write("b.yaml", &[small("b")]);
    host.until("a", &["True"]).await;
    host.until("b", &["True"]).await;
    diagnose(&host).lacks("orphan");
    fs::remove_file(host.manifests.join("a.yaml")).unwrap();
    host.until("a", &["Orphan"]).await;
    let found = diagnose(&host);
    let orphan = found.finds("orphan", "Volume/default/a");
    assert!(orphan["since"].is_string(), "{orphan}");
    host.write("a.yaml", &[small("a")]);
    let status = || host.agent.status().0;
    eventually(status, |table| !table.contains("Orphan")).await;
    diagnose(&host).lacks("orphan");
}

#[tokio::test]
async fn a_state_file_that_cannot_be_read_is_told_also_without_an_agent() {
    let mut host = Host::start().await;
    host.write("a.yaml", &[small("a")]);
    host.until("a", &["True"]).await;
    host.agent.kill();
    let path = host
        .agent
        .path("state/reconciler/objects/Volume/default/broken.json");
    fs::write(&path, "{").unwrap();
    diagnose(&host).finds("unreadable-state-file", "broken.json");
    fs::remove_file(&path).unwrap();
    diagnose(&host).lacks("unreadable-state-file");
}

#[tokio::test]
async fn manifests_that_are_not_valid_or_away_are_told_also_without_an_agent() {
    let mut host = Host::start().await;
    host.write("a.yaml", &[small("a")]);
    host.until("a", &["True"]).await;
    host.agent.kill();
    let found = diagnose(&host);
    found.lacks("invalid-manifest");
    found.lacks("manifests-unavailable");
    host.write(
        "b.yaml",
        &["apiVersion: drumlin.dev/v1alpha1\nkind: Volum\n".to_owned()],
    );
    let found = diagnose(&host);
    let command = found.text("invalid-manifest", "b.yaml:", "command");
    let path = text(host.manifests.join("b.yaml"));
    assert_eq!(command, format!("drumlin validate {path}"));
    assert_eq!(
        host.agent.command(&["validate", &path]).status.code(),
        Some(4)
    );
    fs::remove_file(&path).unwrap();
    found.lacks("ignored-file");
    host.write("c d.yaml", &[small("c")]);
    diagnose(&host).finds("ignored-file", "c d.yaml");
    fs::remove_file(host.manifests.join("c d.yaml")).unwrap();
    let away = host.agent.path("away");
    fs::rename(&host.manifests, &away).unwrap();
    diagnose(&host).finds("manifests-unavailable", "manifests");
    fs::rename(&away, &host.manifests).unwrap();
    diagnose(&host).lacks("manifests-unavailable");
}

#[tokio::test]
async fn manifests_that_can_be_read_and_are_not_used_are_told() {
    let host = Host::start().await;
    host.write("a.yaml", &[small("a")]);
    host.until("a", &["True"]).await;
    diagnose(&host).lacks("manifests-unavailable");
    fs::remove_file(host.manifests.join("a.yaml")).unwrap();
    let found = Diagnosis::until(&host.agent, "manifests-unavailable", "manifests");
    let message = found.text("manifests-unavailable", "manifests", "message");
    assert!(message.contains("is empty, but objects"), "{message}");
    host.write("a.yaml", &[small("a")]);
    let found = || diagnose(&host).all("manifests-unavailable").len();
    eventually(found, |count| *count == 0).await;
}

#[tokio::test]
async fn what_was_released_is_kept_until_it_is_deleted() {
    let host = Host::start().await;
    let manifest = small("a").replace("deletionPolicy: Delete", "deletionPolicy: Retain");
    host.write("a.yaml", &[manifest.clone()]);
    host.until("a", &["True"]).await;
    diagnose(&host).lacks("kept-resource");
    host.write("a.yaml", &[absent(&manifest)]);
    host.until("a", &["Released"]).await;
    let found = diagnose(&host);
    let kept = found.finds("kept-resource", "node-a/default/");
    assert!(kept["since"].is_string(), "{kept}");
    let handle = kept["object"].as_str().unwrap();
    let (state, socket) = (text(host.agent.path("state")), text(host.agent.socket()));
    let words = [
        "delete",
        handle,
        "--yes",
        "--state-dir",
        &state,
        "--endpoint",
        &socket,
    ];
    let deleted = host.agent.command(&words);
    assert!(deleted.status.success(), "{deleted:?}");
    diagnose(&host).lacks("kept-resource");
}

#[tokio::test]
async fn a_volume_that_is_gone_is_lost() {
    let mut host = Host::start().await;
    host.write("a.yaml", &[small("a")]);
    host.until("a", &["True"]).await;
    let object = host.object("Volume", "a");
    let here = home(
        &host.agent,
        object["status"]["volumeHandle"].as_str().unwrap(),
    );
    host.agent.kill();
    diagnose(&host).lacks("lost-volume");
    let away = host.agent.path("away");
    fs::rename(&here, &away).unwrap();
    let found = diagnose(&host);
    let lost = found.finds("lost-volume", "Volume/default/a");
    // Nothing says which classes this agent had.
    let advice = lost["advice"].as_str().unwrap();
    assert!(advice.contains("--config"), "{advice}");
    fs::rename(&away, &here).unwrap();
    diagnose(&host).lacks("lost-volume");
}

#[tokio::test]
async fn a_volume_that_is_being_deleted_is_not_lost() {
    let host = Host::with(Options::default().stopped_at("volume.delete.called")).await;
    host.write("a.yaml", &[small("a")]);
    host.until("a", &["True"]).await;
    host.write("a.yaml", &[absent(&small("a"))]);
    host.until_stopped().await;
    // It is gone, and its record does not say so yet.
    let object = host.object("Volume", "a");
    let handle = object["status"]["volumeHandle"].as_str().unwrap();
    assert!(!home(&host.agent, handle).exists());
    diagnose(&host).lacks("lost-volume");
}

#[tokio::test]
async fn times_in_the_future_are_told() {
    let mut agent = Agent::start().await;
    let id = volume(&agent, "v", 16, &raw()).await;
    agent.kill();
    Diagnosis::of(&agent).lacks("clock-jump");
    let record = home(&agent, &id).join("record.json");
    let before = fs::read_to_string(&record).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&before).unwrap();
    json["labels"]["created"] = "4102444800000000000".into();
    fs::write(&record, json.to_string()).unwrap();
    let key = id.rsplit('/').next().unwrap();
    Diagnosis::of(&agent).finds("clock-jump", key);
    fs::write(&record, before).unwrap();
    Diagnosis::of(&agent).lacks("clock-jump");
    let lock = text(agent.path("state/LOCK"));
    run("touch", &["-d", "+1 hour", &lock]);
    Diagnosis::of(&agent).finds("clock-jump", &lock);
    run("touch", &[&lock]);
    Diagnosis::of(&agent).lacks("clock-jump");
}
