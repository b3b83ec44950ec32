//! `drumlin describe`, `drumlin events` and `drumlin status --watch`, and what becomes of an orphan that is deleted by its
//! name.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Output, Stdio},
};

use drumlin_tests::{
    agent::eventually,
    programs::{drumlin, program},
};
use serde_json::Value;

use crate::{
    helpers::text,
    host::{Host, group, object, small, volume},
};

impl Host {
    fn ask(&self, arguments: &[&str]) -> Output {
        let state = text(self.agent.path("state"));
        self.agent
            .command(&[arguments, &["--state-dir", &state]].concat())
    }

    fn shown(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn delete(&self, arguments: &[&str]) -> Output {
        let socket = text(self.agent.socket());
        self.ask(&[&["delete"], arguments, &["--yes", "--endpoint", &socket]].concat())
    }
}

#[tokio::test]
async fn an_object_whose_manifest_is_invalid_by_now_is_described_with_that() {
    let host = Host::start().await;
    host.write("a.yaml", &[small("data")]);
    host.write("b.yaml", &[small("log")]);
    host.until("data", &["Created"]).await;
    host.until("log", &["Created"]).await;
    host.write("a.yaml", &[format!("{}  surplus: 1\n", small("data"))]);
    let told = |(table, _): &(String, i32)| table.contains("INVALID a.yaml");
    eventually(|| host.agent.status(), told).await;
    let about = host.shown(&["describe", "dv", "data"]);
    assert!(about.contains("INVALID a.yaml:"), "{about}");
    assert!(about.contains("its last valid version applies"), "{about}");
    let about = host.shown(&["describe", "dv", "data", "-o", "json"]);
    let about: Value = serde_json::from_str(&about).unwrap();
    assert_eq!(about["problems"][0]["file"], "a.yaml", "{about:#}");
    let other = host.shown(&["describe", "dv", "log"]);
    assert!(!other.contains("INVALID"), "{other}");
}

#[tokio::test]
async fn an_object_is_described_with_what_belongs_to_it_and_what_it_waits_for() {
    let mut host = Host::start().await;
    let snapshot = object("Snapshot", "first", "", "source: {volumeName: data}");
    let restored = volume("restored", "16Mi", "source: {snapshotName: first}");
    let waiting = volume("waiting", "16Mi", "source: {snapshotName: nobody}");
    host.write(
        "a.yaml",
        &[small("data"), small("log"), group("pg", "data log")],
    );
    host.until("pg", &["AllMembersJoined"]).await;
    host.write("b.yaml", &[snapshot, restored, waiting]);
    host.until("restored", &["Created"]).await;
    host.until("waiting", &["DependencyNotFound"]).await;
    host.agent.kill();

    let about = host.shown(&["describe", "dsnap", "first"]);
    for line in [
        "Object:       Snapshot/default/first\n",
        "Manifest:     b.yaml:1\n",
        "Policy:       Delete\n",
        "  VolumeGroup/default/pg  AllMembersJoined\n",
        "  ├─ Volume/default/data  Created\n",
        "  │  └─ Snapshot/default/first  SnapshotReady  *\n",
        "  │     └─ Volume/default/restored  Created\n",
        "  └─ Volume/default/log  Created\n",
    ] {
        assert!(about.contains(line), "{line}{about}");
    }
    assert!(about.contains("SnapshotReady  1 "), "its event: {about}");
    let about = host.shown(&["describe", "Volume", "default/waiting"]);
    assert!(
        about.contains("Waits for:    snapshot nobody, which does not exist"),
        "{about}"
    );

    let events = host.shown(&["events", "dv/waiting", "-o", "json"]);
    let events: Vec<Value> = serde_json::from_str(&events).unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
    let keys: Vec<&String> = events[0].as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "count",
            "kind",
            "message",
            "name",
            "namespace",
            "reason",
            "time"
        ]
    );
    assert_eq!(events[0]["reason"], "DependencyNotFound");
    let all = host.shown(&["events"]);
    assert!(all.starts_with("AGE"), "{all}");
    assert!(all.contains("VolumeGroup/default/pg"), "{all}");
    let output = host.ask(&["describe", "dv", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("Volume/default/nobody does not exist")
    );
}

/// The keys of an object, each of which the page about manifests names.
pub(crate) fn documented_keys(value: &Value) -> Vec<&str> {
    let page = drumlin_tests::sources::read("docs/src/manifests.md");
    let keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    for key in &keys {
        assert!(page.contains(&format!("`{key}`")), "{key}");
    }
    keys
}

#[tokio::test]
async fn programs_read_the_status_and_what_is_kept_as_json_or_yaml_of_one_shape() {
    let host = Host::start().await;
    host.write("old.yaml", &[small("old")]);
    host.write("live.yaml", &[small("live")]);
    host.until("old", &["True"]).await;
    host.until("live", &["True"]).await;
    fs::remove_file(host.manifests.join("old.yaml")).unwrap();
    host.write("wrong.yaml", &[small("wrong").replace("16Mi", "16XB")]);
    let read = || {
        let json = host.ask(&["status", "-o", "json"]);
        serde_json::from_slice::<Value>(&json.stdout).unwrap()
    };
    let is_told = |status: &Value| {
        status["problems"] != serde_json::json!([]) && status["objects"][1]["reason"] == "Orphan"
    };
    let status = eventually(read, is_told).await;
    let output = host.ask(&["status", "-o", "yaml"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(
        serde_yaml::from_slice::<Value>(&output.stdout).unwrap(),
        status
    );
    assert_eq!(
        documented_keys(&status),
        [
            "directory",
            "elsewhere",
            "ignoredFiles",
            "objects",
            "problems",
            "unreadable"
        ]
    );
    let mut keys = vec![
        "capacity",
        "class",
        "file",
        "group",
        "handle",
        "kind",
        "message",
        "mount",
        "name",
        "namespace",
        "policy",
        "ready",
        "reason",
    ];
    assert_eq!(documented_keys(&status["objects"][0]), keys);
    keys.insert(10, "orphanSince");
    assert_eq!(documented_keys(&status["objects"][1]), keys);
    assert_eq!(
        documented_keys(&status["problems"][0]),
        ["column", "file", "line", "message", "object"]
    );

    let kept = |form: &str| {
        let socket = text(host.agent.socket());
        let output = host.ask(&["kept", "-o", form, "--endpoint", &socket]);
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let json: Value = serde_json::from_slice(&kept("json")).unwrap();
    assert_eq!(
        serde_yaml::from_slice::<Value>(&kept("yaml")).unwrap(),
        json
    );
    assert_eq!(documented_keys(&json), ["objects", "unreadable"]);
    assert_eq!(
        documented_keys(&json["objects"][0]),
        ["created", "handle", "kind", "owner", "size", "state"]
    );
}

#[tokio::test]
async fn programs_read_a_description_as_json_or_yaml_of_one_shape() {
    let host = Host::start().await;
    let snapshot = object("Snapshot", "first", "", "source: {volumeName: data}");
    let waiting = volume("waiting", "16Mi", "source: {snapshotName: nobody}");
    host.write("a.yaml", &[small("data"), snapshot, waiting]);
    host.until("first", &["SnapshotReady"]).await;
    host.until("waiting", &["DependencyNotFound"]).await;
    let read = |name: &[&str]| -> Value {
        let form = |form: &str| host.shown(&[&["describe"], name, &["-o", form]].concat());
        let json: Value = serde_json::from_str(&form("json")).unwrap();
        assert_eq!(serde_yaml::from_str::<Value>(&form("yaml")).unwrap(), json);
        json
    };
    let status: Value =
        serde_json::from_slice(&host.ask(&["status", "-o", "json"]).stdout).unwrap();
    let rows = status["objects"].as_array().unwrap();

    let data = read(&["dv/data"]);
    let row = rows.iter().find(|row| row["name"] == "data").unwrap();
    for (key, value) in row.as_object().unwrap() {
        assert_eq!(data[key], *value, "{key} is that of the status");
    }
    let keys = documented_keys(&data).into_iter();
    let keys: Vec<&str> = keys.filter(|key| row.get(*key).is_none()).collect();
    assert_eq!(
        keys,
        [
            "conditions",
            "created",
            "events",
            "line",
            "observed",
            "requested",
            "tree"
        ]
    );
    assert_eq!(
        (&data["line"], &data["observed"]),
        (&1.into(), &true.into())
    );
    assert_eq!(data["requested"], "16Mi");
    let ready = &data["conditions"][0];
    let keys = documented_keys(ready);
    assert!(
        keys.contains(&"type") && keys.contains(&"lastTransitionTime"),
        "{keys:?}"
    );
    assert_eq!(data["events"][0]["reason"], "Created");
    let leaf = |kind: &str, name: &str, reason: &str, children: Value| {
        serde_json::json!({
            "kind": kind, "namespace": "default", "name": name, "reason": reason, "children": children,
        })
    };
    let first = leaf("Snapshot", "first", "SnapshotReady", serde_json::json!([]));
    let tree = leaf("Volume", "data", "Created", serde_json::json!([first]));
    assert_eq!(data["tree"], tree);
    documented_keys(&data["tree"]);
    // A snapshot is in the tree of its volume.
    assert_eq!(read(&["dsnap", "first"])["tree"], tree);

    let waiting = read(&["dv", "waiting"]);
    documented_keys(&waiting);
    assert_eq!(waiting["ready"], "False");
    let waits = waiting["waitsFor"].as_str().unwrap();
    assert!(
        waits.contains("snapshot nobody, which does not exist"),
        "{waits}"
    );
}

#[tokio::test]
async fn the_status_is_shown_again_when_it_has_changed() {
    let host = Host::start().await;
    let state = text(host.agent.path("state"));
    let mut child = program(drumlin())
        .args(["status", "--watch", "--state-dir", &state])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        lines
            .map_while(Result::ok)
            .try_for_each(|line| sender.send(line))
    });
    host.write("a.yaml", &[small("data")]);
    let mut seen = Vec::new();
    eventually(
        || {
            seen.extend(received.try_iter());
            seen.join("\n")
        },
        |seen| seen.starts_with("no objects\n") && seen.contains("data"),
    )
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn an_orphan_is_deleted_by_its_name_after_it_is_unmounted_and_has_left_its_group() {
    let host = Host::start().await;
    let mount = format!("mount: {{path: {}}}", host.path("old"));
    host.write("a.yaml", &[small("data"), group("pg", "data old")]);
    host.write("b.yaml", &[volume("old", "16Mi", &mount)]);
    host.until("pg", &["2 of 2 members"]).await;
    host.until("old", &["Published"]).await;

    let refused = host.delete(&["dv", "old"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("whose manifest is in b.yaml"), "{why}");
    assert!(why.contains("drumlin.dev/state: absent"), "{why}");

    fs::remove_file(host.manifests.join("b.yaml")).unwrap();
    host.until("old", &["Orphan"]).await;
    assert!(nix::sys::statvfs::statvfs(Path::new(&host.path("old"))).is_ok());
    let deleted = host.delete(&["Volume", "default/old"]);
    assert!(deleted.status.success(), "{deleted:?}");
    let said = String::from_utf8_lossy(&deleted.stdout).into_owned();
    assert!(
        said.contains("this deletes, permanently:\nVolume "),
        "{said}"
    );
    assert!(said.contains(": 16Mi, owned by "), "{said}");
    assert!(
        said.contains(&format!(
            "mounted at {}, where it is unmounted first",
            host.path("old")
        )),
        "{said}"
    );
    assert!(said.contains("a member of group "), "{said}");
    eventually(|| host.find("Volume", "old"), Option::is_none).await;
    assert!(!Path::new(&host.path("old")).exists(), "unmounted");
    assert_eq!(host.counts().await, (1, 0));

    let again = host.delete(&["dv", "old"]);
    assert!(
        String::from_utf8_lossy(&again.stderr).contains("does not exist"),
        "{again:?}"
    );
    let wrong = host.delete(&["pv", "old"]);
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("there is no kind"),
        "{wrong:?}"
    );
}
