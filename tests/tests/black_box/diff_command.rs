//! `drumlin diff`: what it shows is what was written between two snapshots, and what it refuses it names.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    process::{Output, Stdio},
};

use drumlin_proto::drumlin::v1::ListObjectsRequest;
use drumlin_tests::{
    programs::{drumlin, program},
    requests::MIB,
};
use serde_json::{Value, json};

use crate::{
    helpers::{bytes_of, ok, text},
    host::{Host, object, volume},
    lost_state::snapshot,
    snapshot_uuid,
};

/// The ranges that are written between the two snapshots: offset and size.
const WRITES: [(u64, u64); 3] = [(4096, 4096), (5 << 20, 1 << 20), (63 << 20, 8192)];
const TABLE: &str = "  OFFSET      SIZE
    4096      4096
 5242880   1048576
66060288      8192
1060864 bytes in 3 ranges differ; the volume has 67108864 bytes
";

impl Host {
    fn diff(&self, arguments: &[&str]) -> Output {
        let state = text(self.agent.path("state"));
        let endpoint = text(self.agent.socket());
        let places = ["--state-dir", &state, "--endpoint", &endpoint];
        self.agent
            .command(&[&["diff"], arguments, &places].concat())
    }

    /// What `drumlin diff` prints.
    fn differs(&self, arguments: &[&str]) -> String {
        let output = self.diff(arguments);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Why `drumlin diff` fails; it prints nothing then.
    fn differs_not(&self, arguments: &[&str]) -> String {
        let output = self.diff(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn snapshot_handle(&self, name: &str) -> String {
        let handle = &self.object("Snapshot", name)["status"]["snapshotHandle"];
        handle.as_str().unwrap().to_owned()
    }

    /// A raw volume `data` with the snapshots `before` and `after`, and `WRITES` between them.
    async fn two_snapshots(&self) {
        let raw = volume("data", "64Mi", "volumeMode: Block");
        self.write("data.yaml", &[raw]);
        self.until("data", &["True"]).await;
        self.write("before.yaml", &[snapshot("before", "data")]);
        self.until("before", &["True"]).await;
        let image = bytes_of(&self.agent, &self.handle("data"));
        let image = File::options().write(true).open(image).unwrap();
        for (offset, size) in WRITES {
            let bytes = vec![7; usize::try_from(size).unwrap()];
            image.write_all_at(&bytes, offset).unwrap();
        }
        image.sync_all().unwrap();
        self.write("after.yaml", &[snapshot("after", "data")]);
        self.until("after", &["True"]).await;
    }
}

#[tokio::test]
async fn the_ranges_written_between_two_snapshots_are_shown() {
    let host = Host::start().await;
    host.two_snapshots().await;
    let by_name = ["dsnap", "before", "default/after"];
    assert_eq!(host.differs(&by_name), TABLE);
    let handles = ["before", "after"].map(|name| host.snapshot_handle(name));
    assert_eq!(host.differs(&["dsnap", &handles[0], &handles[1]]), TABLE);
    // What was overwritten is to be read from the other one, and nothing differs from itself.
    assert_eq!(host.differs(&["snapshot", "after", "before"]), TABLE);
    assert_eq!(
        host.differs(&["dsnap", "after", "after"]),
        "  OFFSET      SIZE\n0 bytes in 0 ranges differ; the volume has 67108864 bytes\n"
    );

    let shown = host.differs(&[&by_name[..], &["-o", "json"]].concat());
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let mut uuids = Vec::new();
    for handle in &handles {
        uuids.push(snapshot_uuid::object(&host.agent, handle).await.uuid);
    }
    let named =
        |name: &str, at: usize| json!({"name": name, "handle": handles[at], "uuid": uuids[at]});
    let ranges = WRITES.map(|(offset, size)| json!({"offset": offset, "size": size}));
    let changed: u64 = WRITES.iter().map(|(_, size)| size).sum();
    assert_eq!(
        shown,
        json!({
            "base": named("before", 0),
            "target": named("default/after", 1),
            "capacityBytes": 64 * MIB,
            "ranges": ranges,
            "changedBytes": changed,
        })
    );
    let yaml = host.differs(&[&by_name[..], &["-o", "yaml"]].concat());
    assert_eq!(serde_yaml::from_str::<Value>(&yaml).unwrap(), shown);
}

#[tokio::test]
async fn what_cannot_be_compared_is_named_with_what_to_do() {
    let mut host = Host::start().await;
    host.two_snapshots().await;
    let other = volume("other", "64Mi", "volumeMode: Block");
    host.write("other.yaml", &[other]);
    host.until("other", &["True"]).await;
    let more = [snapshot("of-other", "other"), snapshot("early", "none")];
    host.write("more.yaml", &more);
    host.until("of-other", &["True"]).await;
    host.until("early", &["DependencyNotFound"]).await;
    let (one, data) = (host.snapshot_handle("before"), host.handle("data"));
    let mut inventory = host.agent.inventory();
    let request = ListObjectsRequest::default();
    assert_eq!(ok(inventory.list_objects(request).await).objects.len(), 5);
    let unknown = "node-a/default/00000000-0000-5000-8000-00000000000a";
    for (base, target, words) in [
        (
            "db/none",
            "after",
            "Snapshot/db/none does not exist; `drumlin status`",
        ),
        ("before", "data", "Snapshot/default/data does not exist"),
        (
            "early",
            "after",
            "Snapshot/default/early is not ready: DependencyNotFound",
        ),
        (
            &one,
            unknown,
            "does not exist on the node of this agent\n`drumlin status -o wide`",
        ),
        (
            "before",
            "node-b/default/k",
            "those of another node are compared there",
        ),
        (
            &data,
            "after",
            "is a volume, not a snapshot; `drumlin status -o wide`",
        ),
        (
            "of-other",
            "after",
            "are not snapshots of one volume\nname two snapshots of one volume",
        ),
    ] {
        let refused = host.differs_not(&["dsnap", base, target]);
        assert!(refused.contains(words), "{base} {target}: {refused}");
        let refused = host.differs_not(&["dsnap", base, target, "-o", "json"]);
        assert!(refused.contains(words), "{base} {target}: {refused}");
    }
    let wrong = host.diff(&["dgsnap", "before", "after"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let wrong = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.contains("possible values: dsnap"), "{wrong}");

    fs::remove_file(bytes_of(&host.agent, &one)).unwrap();
    let refused = host.differs_not(&["dsnap", "before", "after"]);
    for words in [&*one, "is damaged", "\nrepair what is named, or compare"] {
        assert!(refused.contains(words), "{refused}");
    }
    host.agent.kill();
    let refused = host.differs_not(&["dsnap", "before", "after"]);
    assert!(
        refused.contains("the agent cannot be reached; check that it runs"),
        "{refused}"
    );
}

#[tokio::test]
async fn an_output_that_cannot_be_written_is_an_error_and_one_that_nobody_reads_is_none() {
    let host = Host::start().await;
    host.two_snapshots().await;
    let command = || {
        let mut command = program(drumlin());
        command
            .args(["diff", "dsnap", "before", "after"])
            .args(["--state-dir", &text(host.agent.path("state"))])
            .args(["--endpoint", &text(host.agent.socket())]);
        command
    };
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = command().stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let refused = String::from_utf8(output.stderr).unwrap();
    assert!(
        refused.contains("the output cannot be written"),
        "{refused}"
    );
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command().stdout(Stdio::from(writer)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[tokio::test]
async fn members_of_a_group_snapshot_are_compared_by_their_handles() {
    let host = Host::start().await;
    host.two_snapshots().await;
    let group = crate::host::group("g", "data");
    host.write("g.yaml", &[group]);
    host.until("g", &["True"]).await;
    let taking = object("GroupSnapshot", "all", "", "groupName: g");
    host.write("all.yaml", &[taking]);
    host.until("all", &["True"]).await;
    let members = &host.object("GroupSnapshot", "all")["status"]["members"];
    let member = members[0]["snapshotHandle"].as_str().unwrap().to_owned();
    assert_eq!(host.differs(&["dsnap", "before", &member]), TABLE);
    let group = &host.object("GroupSnapshot", "all")["status"]["groupSnapshotHandle"];
    let refused = host.differs_not(&["dsnap", "before", group.as_str().unwrap()]);
    assert!(
        refused.contains("is a group snapshot, not a snapshot"),
        "{refused}"
    );
}
