//! Objects whose manifests are gone are destroyed where `--prune=auto` asks for that, within its limits.

use std::{
    fs,
    os::unix::fs::{chown, symlink},
};

use drumlin_tests::{
    agent::{Agent, Options, eventually},
    doctor::Diagnosis,
    storage::Scratch,
};
use serde_json::Value;

use crate::{
    foreign_helpers::command,
    host::{Host, object, small},
};

const PRUNING: [&str; 2] = ["--prune=auto", "--prune-grace=0s"];

fn options(arguments: &[&str]) -> Options {
    Options {
        arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
        ..Options::default()
    }
}

fn snapshot(name: &str, policy: &str) -> String {
    let spec = format!("source: {{volumeName: data}}, deletionPolicy: {policy}");
    object("Snapshot", name, "", &spec)
}

impl Host {
    /// Three scans of the directory: each takes up a new object.
    async fn scan(&self, names: &str) {
        for turn in 0..3 {
            let name = format!("{names}{turn}");
            self.write(&format!("{name}.yaml"), &[small(&name)]);
            self.until(&name, &["Created"]).await;
        }
    }

    fn orphans(&self) -> Vec<String> {
        let (table, _) = self.agent.status();
        let lines = table.lines().filter(|line| line.contains(" Orphan "));
        lines
            .filter_map(|line| line.split_whitespace().nth(2))
            .map(str::to_owned)
            .collect()
    }

    fn sentinel(&self) {
        fs::write(self.manifests.join(".drumlin-prune"), "").unwrap();
    }
}

#[tokio::test]
async fn what_its_manifest_lets_be_deleted_is_pruned_one_at_a_time_and_only_where_the_directory_says_so()
 {
    let mut host = Host::with(options(&PRUNING)).await;
    host.write("a.yaml", &[small("data"), small("other")]);
    host.until("data", &["Created"]).await;
    host.write(
        "b.yaml",
        &[snapshot("first", "Delete"), snapshot("second", "Delete")],
    );
    host.write("c.yaml", &[snapshot("kept", "Retain")]);
    host.write("d.yaml", &[snapshot("emptied", "Delete")]);
    for name in ["first", "second", "kept", "emptied"] {
        host.until(name, &["SnapshotReady"]).await;
    }
    // A volume is of a kind that is not pruned unless it is named.
    host.write("a.yaml", &[small("data")]);
    fs::remove_file(host.manifests.join("b.yaml")).unwrap();
    fs::remove_file(host.manifests.join("c.yaml")).unwrap();
    host.write("d.yaml", &[]);
    host.scan("without").await;
    assert_eq!(
        host.orphans(),
        ["emptied", "first", "kept", "second", "other"]
    );
    assert!(host.agent.log().contains("SuspiciousEmpty"));
    let told = "pruned when it was missing for 0 s";
    let (table, code) = host.agent.status();
    assert!(!table.contains(told), "{table}");
    assert_eq!(code, 3);

    host.sentinel();
    host.scan("with").await;
    let (table, _) = host.agent.status();
    let pruned: Vec<&str> = table.lines().filter(|line| line.contains(told)).collect();
    assert!(pruned.len() == 1 && pruned[0].contains("second"), "{table}");
    // One in an hour, of so few, also after a restart.
    let orphans = ["emptied", "kept", "second", "other"];
    assert_eq!(host.orphans(), orphans);
    eventually(|| host.find("Snapshot", "first"), Option::is_none).await;
    assert_eq!(host.last_event("Snapshot/first")["reason"], "Pruned");
    assert_eq!(host.counts().await.1, 3);
    host.agent.kill();
    let arguments = host.agent.options().arguments.clone();
    host.agent
        .restart_with(Options {
            arguments,
            ..Options::default()
        })
        .await;
    host.scan("again").await;
    assert_eq!(host.orphans(), orphans);
    // Whose manifest is back is an orphan no more.
    host.write("b.yaml", &[snapshot("second", "Delete")]);
    host.until("second", &["SnapshotReady"]).await;
    assert_eq!(host.counts().await.1, 3);
}

#[tokio::test]
async fn while_a_file_is_invalid_nothing_is_pruned_for_it_may_have_what_is_missing() {
    let host = Host::with(options(&PRUNING)).await;
    host.sentinel();
    host.write("data.yaml", &[small("data")]);
    host.until("data", &["Created"]).await;
    host.write("a.yaml", &[snapshot("moved", "Delete")]);
    host.until("moved", &["SnapshotReady"]).await;
    // A file has another name now, and a word that does not belong there.
    let moved = snapshot("moved", "Delete");
    host.write("b.yaml", &[format!("{moved}  surplus: 1\n")]);
    fs::remove_file(host.manifests.join("a.yaml")).unwrap();
    host.scan("invalid").await;
    let line = host.until("moved", &["Orphan"]).await;
    assert!(!line.contains("pruned"), "{line}");
    assert_eq!(host.counts().await.1, 1);
    let plan = command(&host.agent, "plan", &[]);
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(plan.contains("0 destroy"), "{plan}");

    host.write("b.yaml", &[moved]);
    host.until("moved", &["SnapshotReady"]).await;
    // Without the invalid file it is missing indeed.
    fs::remove_file(host.manifests.join("b.yaml")).unwrap();
    host.scan("valid").await;
    eventually(|| host.find("Snapshot", "moved"), Option::is_none).await;
}

#[tokio::test]
async fn while_a_file_is_ignored_or_a_link_leads_nowhere_nothing_is_pruned() {
    let mut host = Host::with(options(&PRUNING)).await;
    host.sentinel();
    host.write("data.yaml", &[small("data")]);
    host.until("data", &["Created"]).await;
    host.write("a.yaml", &[snapshot("moved", "Delete")]);
    host.until("moved", &["SnapshotReady"]).await;
    let file = |name: &str| host.manifests.join(name);
    fs::rename(file("a.yaml"), file("my a.yaml")).unwrap();
    host.scan("ignored").await;
    let line = host.until("moved", &["Orphan"]).await;
    assert!(!line.contains("pruned"), "{line}");
    assert_eq!(host.counts().await.1, 1);
    assert!(host.agent.status().0.contains("IGNORED my a.yaml: "));
    let plan = command(&host.agent, "plan", &[]);
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(plan.contains("IGNORED my a.yaml: "), "{plan}");
    assert!(!plan.contains("- destroy"), "{plan}");
    let manifests = format!("--manifests={}", host.manifests.display());
    Diagnosis::with(&host.agent, &[&manifests]).finds("ignored-file", "my a.yaml");
    let log = host.agent.log();
    let told = log.lines().filter(|line| line.contains("are ignored"));
    assert_eq!(told.count(), 1, "{log}");

    fs::rename(file("my a.yaml"), file("target")).unwrap();
    symlink("target", file("a.yaml")).unwrap();
    host.until("moved", &["SnapshotReady"]).await;
    fs::remove_file(file("target")).unwrap();
    host.scan("dangling").await;
    host.until("moved", &["SnapshotReady"]).await;
    let (table, code) = host.agent.status();
    assert!(table.contains("INVALID a.yaml:1:1: "), "{table}");
    assert!(!table.contains("IGNORED") && code == 3, "{table}");
    // Also at a start, which knows no last valid version.
    host.restart_with(options(&PRUNING)).await;
    host.scan("started").await;
    assert_eq!(host.counts().await.1, 1);
    fs::remove_file(host.manifests.join("a.yaml")).unwrap();
    host.scan("gone").await;
    eventually(|| host.find("Snapshot", "moved"), Option::is_none).await;
}

#[tokio::test]
async fn the_configuration_file_alone_says_what_is_pruned_and_whose_manifests_are_accepted() {
    let scratch = Scratch::new();
    let manifests = scratch.directory("manifests");
    let config = format!(
        "manifests: {}\nprune: {{mode: auto, grace: 0s, kinds: [Volume]}}\nmanifestOwner: 65533\n",
        manifests.display()
    );
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let host = Host { agent, manifests };
    // It comes by a rename, as from git-sync: it is never another user's.
    let (made, manifest) = (
        host.manifests.join("old.new"),
        host.manifests.join("old.yaml"),
    );
    fs::write(&made, small("old")).unwrap();
    chown(&made, Some(65533), None).unwrap();
    fs::rename(&made, &manifest).unwrap();
    host.write("data.yaml", &[small("data")]);
    host.until("data", &["Created"]).await;
    host.until("old", &["Created"]).await;
    host.write("first.yaml", &[snapshot("first", "Delete")]);
    host.until("first", &["SnapshotReady"]).await;
    host.sentinel();
    fs::remove_file(&manifest).unwrap();
    fs::remove_file(host.manifests.join("first.yaml")).unwrap();
    host.scan("more").await;
    eventually(|| host.find("Volume", "old"), Option::is_none).await;
    // A snapshot is of a kind that the file does not name.
    assert_eq!(host.orphans(), ["first"]);
}

#[tokio::test]
async fn nothing_is_pruned_by_default_and_a_kill_ends_in_the_same() {
    let mut host = Host::start().await;
    host.write("a.yaml", &[small("data")]);
    host.write("b.yaml", &[small("old")]);
    host.until("old", &["Created"]).await;
    fs::remove_file(host.manifests.join("b.yaml")).unwrap();
    host.sentinel();
    host.scan("default").await;
    assert_eq!(host.orphans(), ["old"]);

    host.agent.kill();
    let mut arguments = host.agent.options().arguments.clone();
    arguments.extend(PRUNING.map(str::to_owned));
    arguments.push("--prune-kinds=Volume".to_owned());
    let options = Options {
        arguments: arguments.clone(),
        ..Options::default()
    };
    host.agent
        .restart_with(options.killed_at("ingest.pruned"))
        .await;
    // The scan at the start is the first one.
    host.write("later0.yaml", &[small("later0")]);
    host.until("later0", &["Created"]).await;
    host.write("later1.yaml", &[small("later1")]);
    host.agent.wait_until_killed().await;
    assert!(host.find("Volume", "old").is_some());
    host.agent
        .restart_with(Options {
            arguments,
            ..Options::default()
        })
        .await;
    host.until("later1", &["Created"]).await;
    eventually(|| host.find("Volume", "old"), Option::is_none).await;
    // data, default0 to 2, later0 and later1.
    assert_eq!(host.counts().await.0, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_and_doctor_say_what_is_going_to_be_pruned() {
    let host = Host::with(options(&["--prune=auto", "--prune-grace=3600s"])).await;
    host.write("a.yaml", &[small("data")]);
    host.write("b.yaml", &[snapshot("old", "Delete")]);
    host.until("old", &["SnapshotReady"]).await;
    fs::remove_file(host.manifests.join("b.yaml")).unwrap();
    host.until("old", &["Orphan"]).await;
    let planned = || {
        let planned = command(&host.agent, "plan", &["-o", "json"]);
        let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
        (plan["changes"][0].clone(), planned.status.code())
    };
    let (line, code) = planned();
    assert_eq!((&line["action"], code), (&"orphan".into(), Some(0)));
    assert_eq!(line["detail"], "kept");

    host.sentinel();
    let (line, code) = planned();
    assert_eq!((&line["action"], code), (&"destroy".into(), Some(2)));
    assert_eq!(line["detail"], "pruned when it was missing for 3600 s");
    assert_eq!(line["rpcs"], serde_json::json!(["DeleteSnapshot"]));
    assert_eq!(line["bytes"], 16 << 20);
    let told = Diagnosis::of(&host.agent).text("orphan", "Snapshot/default/old", "message");
    assert!(told.contains("pruned when"), "{told}");
    // A plan destroys nothing.
    assert_eq!(host.counts().await.1, 1);
    assert_eq!(host.orphans(), ["old"]);
    // Nothing follows from a directory that became empty, whatever it says of itself.
    fs::remove_file(host.manifests.join("a.yaml")).unwrap();
    assert_eq!(planned(), (Value::Null, Some(4)));
}
