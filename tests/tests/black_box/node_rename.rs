//! A host that is called otherwise after a while, or whose disks are another one by now.

use std::fs;

use drumlin_tests::{
    agent::{Options, eventually, is_over_lvm},
    does_not_apply,
};
use serde_json::{Value, json};
use tonic::Code;

use drumlin_proto::csi::v1::ProbeRequest;

use crate::{
    helpers::{get, put, refused},
    host::{Host, absent, annotated, group, object, small, volume},
    lost_state::snapshot,
};

const ALL: [(&str, &str, &str); 6] = [
    ("Volume", "a", "volumeHandle"),
    ("Volume", "b", "volumeHandle"),
    ("Volume", "c", "volumeHandle"),
    ("VolumeGroup", "g", "groupHandle"),
    ("Snapshot", "before", "snapshotHandle"),
    ("GroupSnapshot", "s", "groupSnapshotHandle"),
];

impl Host {
    /// Starts the agent again under another name of its node; with a fail point, it is killed there.
    async fn rename(&mut self, node: &str, arguments: &[&str], point: Option<&str>) -> bool {
        self.agent.kill();
        let manifests = ["--manifests", self.manifests.to_str().unwrap()];
        let options = Options {
            node: Some(node.to_owned()),
            arguments: manifests
                .iter()
                .chain(arguments)
                .map(|&word| word.to_owned())
                .collect(),
            ..Options::default()
        };
        let options = options.perhaps_killed_at(point);
        self.agent.try_restart_with(options).await
    }

    async fn until_problem(&self, problem: &str) {
        eventually(|| self.agent.status(), |(table, _)| table.contains(problem)).await;
    }

    /// The status of everything, but what is said of it and when.
    fn told(&self) -> Value {
        let told = ALL.iter().map(|(kind, name, _)| {
            let mut status = self.object(kind, name)["status"].clone();
            let status = status.as_object_mut().unwrap();
            status.remove("conditions");
            status.remove("lastOperation");
            status.remove("observedGeneration");
            json!(status)
        });
        Value::Array(told.collect())
    }

    async fn until_all(&self, words: &[&str]) {
        for (_, name, _) in ALL {
            self.until(name, words).await;
        }
    }
}

/// A host with something of each kind.
async fn full() -> Host {
    let host = Host::start().await;
    let mounted = format!("mount: {{path: {}}}", host.path("a"));
    host.write(
        "v.yaml",
        &[volume("a", "16Mi", &mounted), small("b"), small("c")],
    );
    host.write("g.yaml", &[group("g", "b c")]);
    host.until("g", &["True", "2 of 2"]).await;
    host.until("a", &["True"]).await;
    put(&host.path("a"), "file", b"before");
    host.write(
        "s.yaml",
        &[
            snapshot("before", "a"),
            object("GroupSnapshot", "s", "", "groupName: g"),
        ],
    );
    host.until_all(&["True"]).await;
    put(&host.path("a"), "file", b"after");
    host
}

#[tokio::test]
async fn what_was_made_under_another_name_is_refused_until_somebody_says_so_and_then_all_is_there()
{
    let mut host = full().await;
    let (had, counts) = (host.told(), host.counts().await);
    assert!(host.rename("node-b", &[], None).await);
    for (_, name, _) in ALL {
        host.until(name, &["False", "node node-a", "adopt-node node-a"])
            .await;
    }
    if !is_over_lvm() {
        let probed = host.agent.identity().probe(ProbeRequest {}).await;
        let why = refused(probed, Code::FailedPrecondition);
        assert!(why.contains("--adopt-node node-a"), "{why}");
    }
    assert_eq!(host.told(), had);

    let adopt = ["--adopt-node", "node-a"];
    let points: &[&str] = if is_over_lvm() {
        &[]
    } else {
        &[
            "directory.record.written",
            "directory.record.renamed",
            "adopting.relabelled",
            "node-rename.recorded",
        ]
    };
    for point in points {
        if host.rename("node-b", &adopt, Some(point)).await {
            host.agent.wait_until_killed().await;
        }
    }
    assert!(host.rename("node-b", &adopt, None).await);
    let had = had.to_string().replace("\"node-a/", "\"node-b/");
    for _ in 0..2 {
        host.until_all(&["True"]).await;
        for (kind, name, field) in ALL {
            let handle = host.object(kind, name)["status"][field].clone();
            assert!(handle.as_str().unwrap().starts_with("node-b/"), "{handle}");
        }
        let told = host.told().to_string();
        assert_eq!(told, had);
        assert_eq!(host.counts().await, counts);
        assert_eq!(get(&host.path("a"), "file"), b"after");
        // It is said once.
        assert!(host.rename("node-b", &[], None).await);
    }
    host.restores_each_moment("before").await;
    host.write("v.yaml", &[small("a"), absent(&small("b")), small("c")]);
    host.write("g.yaml", &[group("g", "c")]);
    host.until("b", &["Deleted"]).await;
}

#[tokio::test]
async fn what_is_in_no_manifest_or_paused_has_its_new_ids_too_and_is_left_alone_otherwise() {
    let mut host = full().await;
    let mounted = format!("mount: {{path: {}}}", host.path("a"));
    let paused = annotated(&small("c"), "drumlin.dev/paused: \"true\"");
    host.write("v.yaml", &[volume("a", "16Mi", &mounted), paused]);
    host.until("b", &["Orphan"]).await;
    // Without leave nothing is changed, and it is asked again until there is.
    assert!(host.rename("node-b", &[], None).await);
    host.until("a", &["False", "adopt-node node-a"]).await;
    host.until("b", &["Orphan"]).await;
    assert!(
        host.rename("node-b", &["--adopt-node", "node-a"], None)
            .await
    );
    host.until("g", &["True", "2 of 2"]).await;
    let paused = &host.object("Volume", "c")["metadata"]["annotations"]["drumlin.dev/paused"];
    assert_eq!(paused, "true");
    host.until("b", &["Orphan"]).await;
    for name in ["b", "c"] {
        let handle = host.object("Volume", name)["status"]["volumeHandle"].clone();
        assert!(handle.as_str().unwrap().starts_with("node-b/"), "{handle}");
    }
}

#[tokio::test]
async fn a_host_to_which_a_disk_was_moved_has_all_for_its_files_and_makes_nothing_before() {
    let mut host = full().await;
    let counts = host.counts().await;
    let handle = |host: &Host, (kind, name, field): (&str, &str, &str)| {
        let handle = host.object(kind, name)["status"][field].clone();
        handle.as_str().unwrap().to_owned()
    };
    let had = ALL.map(|one| handle(&host, one));
    host.agent.kill();
    fs::remove_dir_all(host.agent.path("state/reconciler")).unwrap();
    assert!(host.rename("node-b", &[], None).await);
    for name in ["a", "b", "c", "g"] {
        host.until(name, &["False", "node-a"]).await;
    }
    for name in ["before", "s"] {
        host.until(name, &["False"]).await;
    }
    let adopt = ["--adopt-node", "node-a"];
    assert!(host.rename("node-b", &adopt, None).await);
    host.until_all(&["True"]).await;
    for (one, had) in ALL.into_iter().zip(had) {
        assert_eq!(handle(&host, one), had.replace("node-a/", "node-b/"));
    }
    assert_eq!(host.counts().await, counts);
    assert_eq!(get(&host.path("a"), "file"), b"after");
}

#[tokio::test]
async fn a_file_that_names_its_node_is_told_the_new_name_and_no_other() {
    let mut host = Host::start().await;
    let on = |node: &str| volume("a", "16Mi", &format!("nodeName: {node}"));
    host.write("v.yaml", &[on("node-a")]);
    host.until("a", &["True"]).await;
    assert!(
        host.rename("node-b", &["--adopt-node", "node-a"], None)
            .await
    );
    host.until(
        "a",
        &["False", "NotThisNode", "set spec.nodeName to node-b"],
    )
    .await;
    host.write("v.yaml", &[on("node-c")]);
    host.until_problem("spec.nodeName: cannot be changed").await;
    host.write("v.yaml", &[on("node-b")]);
    host.until("a", &["True"]).await;
    host.write("v.yaml", &[on("node-a")]);
    host.until_problem("spec.nodeName: cannot be changed").await;
    host.until("a", &["True"]).await;
}

#[tokio::test]
async fn a_directory_without_a_mark_is_its_images_nodes_and_an_empty_one_is_anybodys() {
    if is_over_lvm() {
        return does_not_apply!("it is about the mark of a directory");
    }
    let mut host = Host::start().await;
    let mark = host.agent.path("state/images/node.json");
    eventually(|| mark.exists(), |is_there| *is_there).await;
    assert!(host.rename("node-b", &[], None).await);
    host.write("v.yaml", &[small("a"), snapshot("s", "a")]);
    host.until("s", &["True"]).await;
    fs::remove_file(&mark).unwrap();
    assert!(host.rename("node-c", &[], None).await);
    host.until("a", &["False", "adopt-node node-b"]).await;
    fs::write(&mark, "{").unwrap();
    host.write("v.yaml", &[small("a"), snapshot("s", "a"), small("b")]);
    host.until("b", &["False", "node.json cannot be parsed"])
        .await;
    fs::remove_file(&mark).unwrap();
    assert!(host.rename("node-b", &[], None).await);
    host.until("a", &["True"]).await;
    host.until("b", &["True"]).await;
    let marked: Value = serde_json::from_slice(&fs::read(&mark).unwrap()).unwrap();
    assert_eq!(marked, json!({"version": 1, "node": "node-b"}));
}
