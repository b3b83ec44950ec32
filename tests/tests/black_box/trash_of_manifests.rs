//! `deletionPolicy: Trash`, and the commands that show and empty the trash.

use serde_json::Value;

use drumlin_tests::{agent::Options, storage::Scratch};

use crate::{
    foreign_helpers::{done, fails},
    helpers::{get, put, text},
    host::{Host, absent, small, volume},
};

const SNAPSHOT: &str = "apiVersion: drumlin.dev/v1alpha1
kind: Snapshot
metadata: {name: s}
spec: {source: {volumeName: v}, deletionPolicy: Retain}
";

/// A host whose class has a trash.
async fn with_trash() -> Host {
    let scratch = Scratch::new();
    let directory = text(scratch.directory("images"));
    let class = format!("{{name: default, directory: {{path: {directory}}}, trash: {{keep: 1d}}}}");
    let options = Options {
        config: Some(format!("classes: [{class}]\n")),
        ..Options::default()
    };
    Host::over(scratch, options).await
}

/// A host whose mounted volume `v`, with a file, went to the trash as its manifest asks.
pub(crate) async fn with_thrown_away() -> Host {
    let host = Host::start().await;
    host.write("v.yaml", &[manifest(&host, "Trash")]);
    host.until("v", &["True"]).await;
    put(&host.path("v"), "file", b"needed after all");
    host.write("v.yaml", &[absent(&manifest(&host, "Trash"))]);
    host.until("v", &["Deleted"]).await;
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_a_class_with_a_trash_is_said_to_go_there() {
    let host = with_trash().await;
    let never_used = volume("blank", "16Mi", "fsType: ext4\ndeletionPolicy: Delete");
    host.write("v.yaml", &[manifest(&host, "Delete")]);
    host.write("blank.yaml", &[never_used.clone()]);
    host.until("v", &["True"]).await;
    host.until("blank", &["True"]).await;
    // Planned while no reconciler acts on it.
    let planned = host.agent.path("planned");
    std::fs::create_dir(&planned).unwrap();
    for (file, manifest) in [
        ("v.yaml", manifest(&host, "Delete")),
        ("blank.yaml", never_used.clone()),
    ] {
        std::fs::write(planned.join(file), absent(&manifest)).unwrap();
    }
    let state = text(host.agent.path("state"));
    let socket = format!("unix://{}", text(host.agent.socket()));
    let arguments = [
        "--manifests",
        &text(planned),
        "--state-dir",
        &state,
        "--endpoint",
        &socket,
    ];
    let output = host.agent.command(&[&["plan"], &arguments[..]].concat());
    let plan = String::from_utf8(output.stdout).unwrap();
    let line = |name: &str| plan.lines().find(|line| line.contains(name)).unwrap();
    assert!(
        line("Volume/default/v ").contains("moved to the trash"),
        "{plan}"
    );
    assert!(
        !line("Volume/default/blank ").contains("moved to the trash"),
        "{plan}"
    );
    host.write("v.yaml", &[absent(&manifest(&host, "Delete"))]);
    host.write("blank.yaml", &[absent(&never_used)]);
    let line = host.until("v", &["Deleted"]).await;
    assert!(line.contains("moved to the trash"), "{line}");
    let line = host.until("blank", &["Deleted"]).await;
    assert!(
        line.contains("deleted; its manifest can be removed"),
        "{line}"
    );
    let table = printed(&host, &["trash"]);
    assert!(table.contains("file default/v"), "{table}");
    assert!(!table.contains("blank"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_never_used_is_deleted_whatever_asks_for_the_trash() {
    let host = Host::start().await;
    let unused = volume("v", "16Mi", "fsType: ext4\ndeletionPolicy: Trash");
    host.write("v.yaml", std::slice::from_ref(&unused));
    host.until("v", &["True", "Created"]).await;
    host.write("v.yaml", &[absent(&unused)]);
    let line = host.until("v", &["Deleted"]).await;
    assert!(!line.contains("trash"), "{line}");
    assert_eq!(host.counts().await, (0, 0));
    let trash = printed(&host, &["trash"]);
    assert!(!trash.contains("default/v"), "{trash}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_by_hand_is_said_to_go_to_the_trash_if_it_does() {
    let host = with_trash().await;
    host.write("v.yaml", &[manifest(&host, "Retain"), SNAPSHOT.to_owned()]);
    // The directory is not empty.
    host.write("other.yaml", &[small("other")]);
    host.until("s", &["True"]).await;
    std::fs::remove_file(host.manifests.join("v.yaml")).unwrap();
    host.until("s", &["Orphan"]).await;
    host.until("v", &["Orphan"]).await;
    let told = done(&host.agent, "delete", &["dsnap", "s", "--yes"]);
    assert!(
        told.starts_with("this deletes, permanently:\nSnapshot "),
        "{told}"
    );
    assert!(told.ends_with("\ndeleted\n"), "{told}");
    let told = done(&host.agent, "delete", &["dv", "v", "--yes"]);
    assert!(told.starts_with("this moves to the trash"), "{told}");
    assert!(told.ends_with("`drumlin trash` shows it\n"), "{told}");
    let table = printed(&host, &["trash"]);
    assert!(table.contains("file default/v"), "{table}");
}

pub(crate) fn manifest(host: &Host, policy: &str) -> String {
    let path = host.path("v");
    let spec = format!("fsType: ext4\nmount: {{path: {path}}}\ndeletionPolicy: {policy}");
    volume("v", "16Mi", &spec)
}

/// What a command prints; it must succeed.
#[track_caller]
fn printed(host: &Host, arguments: &[&str]) -> String {
    let socket = format!("unix://{}", text(host.agent.socket()));
    let arguments = [arguments, &["--endpoint", &socket]].concat();
    let output = host.agent.command(&arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{complaint}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_goes_to_the_trash_comes_back_to_its_manifest() {
    let host = Host::start().await;
    host.write("v.yaml", &[manifest(&host, "Trash")]);
    host.until("v", &["True"]).await;
    put(&host.path("v"), "file", b"needed after all");
    assert_eq!(printed(&host, &["trash"]), "the trash is empty\n");
    host.write("v.yaml", &[absent(&manifest(&host, "Trash"))]);
    let line = host.until("v", &["Deleted"]).await;
    assert!(line.contains("moved to the trash"), "{line}");
    assert_eq!(host.counts().await, (0, 0));
    let table = printed(&host, &["trash"]);
    assert!(table.contains("file default/v"), "{table}");
    let listed: Value = serde_json::from_str(&printed(&host, &["trash", "-o", "json"])).unwrap();
    let one = &listed["volumes"][0];
    for (field, wanted) in [("size", "16Mi"), ("owner", "file default/v")] {
        assert_eq!(one[field], wanted, "{listed:#}");
    }
    for field in ["id", "name", "deleted", "expires"] {
        assert_ne!(one[field].as_str().unwrap(), "", "{field} of {listed:#}");
    }
    assert_eq!(listed["unreadable"], serde_json::json!([]));
    let told = done(&host.agent, "undelete", &["v"]);
    assert!(told.contains("file default/v"), "{told}");
    host.write("v.yaml", &[manifest(&host, "Retain")]);
    host.until("v", &["True"]).await;
    assert_eq!(get(&host.path("v"), "file"), b"needed after all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_says_what_goes_to_the_trash_and_a_name_in_it_twice_is_not_guessed() {
    let host = Host::start().await;
    for turn in 1..=2 {
        host.write("v.yaml", &[manifest(&host, "Trash")]);
        host.until("v", &["True"]).await;
        if turn == 2 {
            break;
        }
        host.write("v.yaml", &[absent(&manifest(&host, "Trash"))]);
        host.until("v", &["Deleted"]).await;
    }
    // Planned while no reconciler acts on it.
    let planned = host.agent.path("planned");
    std::fs::create_dir(&planned).unwrap();
    std::fs::write(planned.join("v.yaml"), absent(&manifest(&host, "Trash"))).unwrap();
    let socket = format!("unix://{}", text(host.agent.socket()));
    let (state, planned) = (text(host.agent.path("state")), text(planned));
    let output = host.agent.command(&[
        "plan",
        "--manifests",
        &planned,
        "--state-dir",
        &state,
        "--endpoint",
        &socket,
    ]);
    let plan = String::from_utf8(output.stdout).unwrap();
    assert!(plan.contains("moved to the trash"), "{plan}");
    assert!(plan.contains("TrashVolume"), "{plan}");
    host.write("v.yaml", &[absent(&manifest(&host, "Trash"))]);
    host.until("v", &["Deleted"]).await;
    let complaint = fails(&host.agent, "undelete", &["default/v"]);
    assert!(complaint.contains("give the id of one"), "{complaint}");
    let listed: Value = serde_json::from_str(&printed(&host, &["trash", "-o", "json"])).unwrap();
    let ids = listed["volumes"].as_array().unwrap().iter();
    let ids: Vec<&str> = ids.map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 2);
    let unconfirmed = host
        .agent
        .command(&["trash", "--destroy", ids[0], "--endpoint", &socket]);
    assert!(!unconfirmed.status.success());
    let told = printed(&host, &["trash", "--destroy", ids[0], ids[1], "--yes"]);
    assert!(told.contains("deleted"), "{told}");
    assert_eq!(printed(&host, &["trash"]), "the trash is empty\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_that_is_deleted_goes_to_the_trash_as_its_last_manifest_asks() {
    let host = Host::start().await;
    host.write("other.yaml", &[small("other")]);
    host.write("v.yaml", &[manifest(&host, "Trash")]);
    host.until("v", &["True"]).await;
    put(&host.path("v"), "file", b"needed after all");
    std::fs::remove_file(host.manifests.join("v.yaml")).unwrap();
    host.until("v", &["Orphan"]).await;
    let told = done(&host.agent, "delete", &["dv", "v", "--yes"]);
    assert!(told.starts_with("this moves to the trash"), "{told}");
    assert!(told.ends_with("`drumlin trash` shows it\n"), "{told}");
    assert_eq!(host.counts().await, (1, 0));
    done(&host.agent, "undelete", &["v"]);
    host.write("v.yaml", &[manifest(&host, "Retain")]);
    host.until("v", &["True"]).await;
    assert_eq!(get(&host.path("v"), "file"), b"needed after all");
}
