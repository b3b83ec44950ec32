//! What no object asks for: listed, given to an object, deleted by hand.

use std::{
    fs,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{
    ControllerGetVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
};
use drumlin_tests::{
    agent::{Options, PATIENCE, eventually},
    programs::{process_state, workspace},
    requests::{create, mounted},
};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    foreign_helpers::{command, done, fails},
    helpers::{get, ok, put},
    host::{Host, absent, group, object, small, volume},
};

impl Host {
    /// What the command prints, which must succeed.
    #[track_caller]
    fn done(&self, command: &str, arguments: &[&str]) -> String {
        done(&self.agent, command, arguments)
    }

    /// Why the command fails, which it must.
    #[track_caller]
    fn fails(&self, command: &str, arguments: &[&str]) -> String {
        fails(&self.agent, command, arguments)
    }

    fn kept(&self, arguments: &[&str]) -> Vec<Value> {
        let arguments = [&["-o", "json"], arguments].concat();
        let kept: Value = serde_json::from_str(&self.done("kept", &arguments)).unwrap();
        kept["objects"].as_array().unwrap().clone()
    }

    fn id(&self, kind: &str, name: &str) -> String {
        let field = match kind {
            "Volume" => "volumeHandle",
            "Snapshot" => "snapshotHandle",
            "VolumeGroup" => "groupHandle",
            _ => "groupSnapshotHandle",
        };
        let handle = &self.object(kind, name)["status"][field];
        handle.as_str().unwrap().to_owned()
    }

    async fn is_there(&self, handle: &str) -> bool {
        let request = ControllerGetVolumeRequest {
            volume_id: handle.to_owned(),
        };
        let mut controller = self.agent.controller();
        controller.controller_get_volume(request).await.is_ok()
    }
}

#[tokio::test]
async fn an_orphan_is_listed_and_deleted_when_a_person_has_seen_what_that_is() {
    let host = Host::start().await;
    host.write("v.yaml", &[small("old"), small("live")]);
    host.until("old", &["True"]).await;
    host.until("live", &["True"]).await;
    let (old, live) = (host.id("Volume", "old"), host.id("Volume", "live"));
    assert_eq!(host.kept(&[]), Vec::<Value>::new());
    let refused = host.fails("delete", &["--yes", &live]);
    assert!(
        refused.contains("Volume/default/live") && refused.contains("v.yaml"),
        "{refused}"
    );
    host.write("v.yaml", &[small("live")]);
    host.until("old", &["Orphan"]).await;
    let kept = host.kept(&[]);
    assert_eq!(kept.len(), 1, "{kept:?}");
    for (field, wanted) in [
        ("handle", old.as_str()),
        ("kind", "Volume"),
        ("size", "16Mi"),
        ("owner", "file default/old"),
        ("state", "Orphan"),
    ] {
        assert_eq!(kept[0][field], wanted);
    }
    // Without a person to say yes nothing is deleted.
    let shown = command(&host.agent, "delete", &[&old]);
    assert_eq!(shown.status.code(), Some(1));
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("16Mi") && shown.contains("file default/old"),
        "{shown}"
    );
    assert!(host.is_there(&old).await);
    host.done("delete", &["--yes", &old]);
    assert!(!host.is_there(&old).await);
    let (table, code) = eventually(|| host.agent.status(), |(_, code)| *code == 0).await;
    assert!(!table.contains("old"), "{code} {table}");
    let event = host.last_event("Volume/old");
    assert_eq!(event["message"], "deleted by `drumlin delete`");
    assert!(host.is_there(&live).await);
    let gone = host.fails("delete", &["--yes", &old]);
    assert!(gone.contains("not found"), "{gone}");
}

#[tokio::test]
async fn an_orphan_whose_volume_is_lost_is_deleted_as_any_other() {
    let host = Host::start().await;
    host.write("v.yaml", &[small("old"), small("live")]);
    host.until("old", &["True"]).await;
    host.until("live", &["True"]).await;
    let handle = host.id("Volume", "old");
    host.write("v.yaml", &[small("live")]);
    host.until("old", &["Orphan"]).await;
    let request = DeleteVolumeRequest {
        volume_id: handle.clone(),
        ..DeleteVolumeRequest::default()
    };
    ok(host.agent.controller().delete_volume(request).await);
    let told = host.done("delete", &["dv", "old", "--yes"]);
    assert!(
        told.contains("does not exist any more") && told.contains("Volume/default/old"),
        "{told}"
    );
    let (table, code) = eventually(|| host.agent.status(), |(_, code)| *code == 0).await;
    assert!(!table.contains("old"), "{code} {table}");
    let gone = host.fails("delete", &["--yes", &handle]);
    assert!(gone.contains("not found"), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_takes_longer_than_a_call_is_waited_for() {
    let options = Options::default().stopped_at("directory.delete.renamed");
    let host = Host::with(options).await;
    host.write("v.yaml", &[small("old"), small("live")]);
    host.until("old", &["True"]).await;
    host.until("live", &["True"]).await;
    host.write("v.yaml", &[small("live")]);
    host.until("old", &["Orphan"]).await;
    let told = std::thread::scope(|threads| {
        let deleting = threads.spawn(|| host.done("delete", &["dv", "old", "--yes"]));
        let deadline = Instant::now() + PATIENCE;
        while process_state(host.agent.pid()) != Some('T') {
            assert!(Instant::now() < deadline, "the deletion begins");
            std::thread::sleep(Duration::from_millis(20));
        }
        // A call is answered within ten seconds, or asked again.
        std::thread::sleep(Duration::from_secs(11));
        host.agent.signal(Signal::SIGCONT);
        deleting.join().unwrap()
    });
    assert!(told.ends_with("deleted\n"), "{told}");
    assert_eq!(host.counts().await, (1, 0));
    let (table, _) = eventually(|| host.agent.status(), |(_, code)| *code == 0).await;
    assert!(!table.contains("old"), "{table}");
}

#[tokio::test]
async fn what_was_released_is_given_to_another_name_with_its_bytes() {
    let host = Host::start().await;
    let mount = format!("mount: {{path: {}}}", host.path("a"));
    let first = volume("first", "16Mi", &mount);
    host.write("first.yaml", &[first.clone()]);
    host.until("first", &["True"]).await;
    put(&host.path("a"), "file", b"bytes");
    let handle = host.id("Volume", "first");
    let held = host.fails("adopt", &[&handle, "db/second"]);
    assert!(held.contains("Volume/default/first"), "{held}");
    host.write("first.yaml", &[absent(&first)]);
    host.until("first", &["Released"]).await;
    assert_eq!(host.kept(&[])[0]["state"], "Released");
    host.write("other.yaml", &[small("other")]);
    host.until("other", &["True"]).await;
    let taken = host.fails("adopt", &[&handle, "other"]);
    assert!(
        taken.contains("has already") || taken.contains("already"),
        "{taken}"
    );
    host.done("adopt", &[&handle, "second"]);
    host.write("second.yaml", &[volume("second", "32Mi", &mount)]);
    host.until("second", &["True", "32Mi"]).await;
    assert_eq!(host.id("Volume", "second"), handle);
    assert_eq!(get(&host.path("a"), "file"), b"bytes");
    assert_eq!(host.kept(&[]), Vec::<Value>::new());
    assert_eq!(host.counts().await, (2, 0));
}

#[tokio::test]
async fn what_an_object_of_a_cluster_had_is_a_files_when_its_writer_says_so() {
    let host = Host::start().await;
    let mut request: CreateVolumeRequest = create("any", 16, &mounted("ext4"));
    let owner = [
        ("owner", "kube"),
        ("kind", "Volume"),
        ("namespace", "default"),
        ("name", "data"),
        ("namespace-uid", "1"),
    ];
    let owner = owner.map(|(key, value)| (format!("drumlin.dev/{key}"), value.to_owned()));
    request.parameters.extend(owner);
    let made = ok(host.agent.controller().create_volume(request).await);
    let handle = made.volume.unwrap().volume_id;
    ok(host
        .agent
        .controller()
        .create_volume(create("plain", 16, &mounted("ext4")))
        .await);
    host.write("v.yaml", &[small("data")]);
    host.until(
        "data",
        &["False", "OwnedByCluster", &handle, "drumlin adopt"],
    )
    .await;
    let kept = host.kept(&[]);
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(
        (&kept[0]["state"], &kept[0]["owner"]),
        (&"Left".into(), &"cluster default/data".into())
    );
    assert_eq!(host.kept(&["--all"]).len(), 2);
    let asked = |handle: &str| {
        let annotation = format!("metadata:\n  annotations: {{drumlin.dev/adopt: {handle}}}\n");
        small("data").replace("metadata:\n", &annotation)
    };
    host.write("v.yaml", &[asked("n/default/none")]);
    host.until("data", &["InvalidArgument", "does not exist"])
        .await;
    host.write("v.yaml", &[asked(&handle)]);
    host.until("data", &["True"]).await;
    assert_eq!(host.id("Volume", "data"), handle);
    assert_eq!(host.kept(&[]), Vec::<Value>::new());
    assert_eq!(host.counts().await, (2, 0));
}

#[tokio::test]
async fn a_group_snapshot_is_deleted_with_its_members_and_a_group_without() {
    let host = Host::start().await;
    host.write("v.yaml", &[small("a"), small("b")]);
    host.write(
        "g.yaml",
        &[
            group("g", "a b"),
            object("GroupSnapshot", "s", "", "groupName: g"),
        ],
    );
    host.until("s", &["True"]).await;
    let (g, s) = (host.id("VolumeGroup", "g"), host.id("GroupSnapshot", "s"));
    let member =
        host.object("GroupSnapshot", "s")["status"]["members"][0]["snapshotHandle"].clone();
    host.write("g.yaml", &[small("c")]);
    host.until("s", &["Orphan"]).await;
    host.until("g", &["Orphan"]).await;
    let kept = host.kept(&[]);
    let mut sizes: Vec<&str> = kept
        .iter()
        .map(|row| row["size"].as_str().unwrap())
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, ["", "32Mi"]);
    let shown = host.done("delete", &["--yes", &s]);
    assert!(shown.contains(member.as_str().unwrap()), "{shown}");
    let shown = host.done("delete", &["--yes", &g]);
    assert!(shown.contains("its 2 volumes are retained"), "{shown}");
    assert_eq!(host.kept(&[]), Vec::<Value>::new());
    eventually(|| host.find("GroupSnapshot", "s"), Option::is_none).await;
    eventually(|| host.find("VolumeGroup", "g"), Option::is_none).await;
    assert_eq!(host.counts().await, (3, 0));
}

/// The commands of the section "Retained data" in the page on manifests.
fn documented_commands() -> Vec<String> {
    let page = fs::read_to_string(workspace().join("docs/src/manifests.md")).unwrap();
    let section = page.split("## Retained data").nth(1).unwrap();
    let block = section.split("```").nth(1).unwrap();
    let lines = block.lines().filter_map(|line| line.split('#').next());
    let lines = lines
        .map(str::trim)
        .filter(|line| line.starts_with("drumlin "));
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn documented_commands_bring_retained_data_back() {
    let mut host = Host::start().await;
    let within = |name: &str, at: &str| {
        let mount = format!("mount: {{path: {}}}", host.path(at));
        let text = volume(name, "16Mi", &mount);
        text.replace("metadata:\n", "metadata:\n  namespace: db\n")
    };
    let (old, data) = (within("old", "old"), within("data", "data"));
    let doomed = small("doomed");
    host.write("v.yaml", &[old.clone(), doomed.clone()]);
    host.until("old", &["True"]).await;
    host.until("doomed", &["True"]).await;
    put(&host.path("old"), "file", b"bytes");
    host.write("v.yaml", &[absent(&old), doomed.clone()]);
    host.until("old", &["Released"]).await;
    host.write("v.yaml", &[small("other")]);
    host.until("doomed", &["Orphan"]).await;
    let words = documented_commands();
    let run = |words: &str, handle: &str, more: &[&str]| {
        let words = words.replace("HANDLE", handle);
        let words: Vec<&str> = words.split_whitespace().skip(1).collect();
        host.done(words[0], &[&words[1..], more].concat())
    };
    let [kept, adopt, handover, delete] = words.as_slice() else {
        panic!("{words:?}");
    };
    let shown = run(kept, "", &[]);
    let handle = |state: &str| {
        let line = shown.lines().find(|line| line.contains(state)).unwrap();
        let mut words = line.split_whitespace();
        words
            .find(|word| word.matches('/').count() == 2)
            .unwrap()
            .to_owned()
    };
    let (released, orphan) = (handle("Released"), handle("Orphan"));
    run(adopt, &released, &[]);
    host.write("data.yaml", &[data]);
    host.until("data", &["True"]).await;
    assert_eq!(get(&host.path("data"), "file"), b"bytes");
    run(delete, &orphan, &["--yes"]);
    assert!(!host.is_there(&orphan).await);
    fs::remove_file(host.manifests.join("data.yaml")).unwrap();
    host.until("data", &["Orphan"]).await;
    run(handover, "", &[]);
    assert!(host.is_there(&released).await);
    host.restart(None).await;
    host.until("data", &["Orphan"]).await;
}
