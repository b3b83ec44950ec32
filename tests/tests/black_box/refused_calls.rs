//! What an object says whose call was refused: by each code, and where the group or the name of it is another by then.

use std::fs;

use drumlin_proto::csi::v1::{ListSnapshotsRequest, ListVolumesRequest};
use drumlin_tests::{
    relay::Fault,
    requests::{create, delete, raw},
};
use serde_json::Value;
use tonic::Code;

use crate::{
    helpers::{ok, text},
    host::{Host, absent, annotated, group, object, small},
    manifests_in_trouble::Reconciler,
};

/// Each code with the condition and the reason that docs/src/conditions.md has for it.
const REASONS: [(Code, &str, &str); 15] = [
    (Code::Aborted, "Reconciling", "OperationPending"),
    (Code::DeadlineExceeded, "Reconciling", "OperationPending"),
    (Code::Unavailable, "Reconciling", "Unavailable"),
    (Code::Cancelled, "Reconciling", "OutcomeUnknown"),
    (Code::Unknown, "Reconciling", "OutcomeUnknown"),
    (
        Code::ResourceExhausted,
        "Reconciling",
        "InsufficientCapacity",
    ),
    (
        Code::FailedPrecondition,
        "Reconciling",
        "FailedPrecondition",
    ),
    (Code::NotFound, "Reconciling", "DependencyNotFound"),
    (Code::Internal, "Reconciling", "InternalError"),
    (Code::DataLoss, "Reconciling", "InternalError"),
    (Code::InvalidArgument, "Stalled", "InvalidArgument"),
    (Code::AlreadyExists, "Stalled", "NameConflict"),
    (Code::OutOfRange, "Stalled", "OutOfRange"),
    (Code::Unimplemented, "Stalled", "Unimplemented"),
    (Code::PermissionDenied, "Stalled", "PermissionDenied"),
];

impl Reconciler {
    /// The conditions of a volume that are `True`, each with its reason.
    fn conditions(&self, name: &str) -> Vec<(String, String)> {
        let path = format!("state/reconciler/objects/Volume/default/{name}.json");
        let record = fs::read(self.agent.path(&path)).unwrap_or_default();
        let record: Value = serde_json::from_slice(&record).unwrap_or_default();
        let conditions = record["status"]["conditions"].as_array();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let conditions = conditions.into_iter().flatten();
        conditions
            .filter(|condition| condition["status"] == "True")
            .map(|condition| (text(&condition["type"]), text(&condition["reason"])))
            .collect()
    }
}

#[tokio::test]
async fn each_code_of_a_refusal_has_its_reason_and_ends_with_what_it_is_about() {
    let host = Reconciler::start().await;
    let name = |code: Code| format!("code-{}-", i32::from(code));
    for (code, ..) in REASONS {
        let refusal = Fault::Refuse(code);
        host.relay.on("CreateVolume", &name(code), refusal);
    }
    let manifests = REASONS.map(|(code, ..)| small(&format!("{}x", name(code))));
    host.write("v.yaml", &manifests);
    for (code, condition, reason) in REASONS {
        let object = format!("{}x", name(code));
        host.until(&object, &["False", reason, "refused on the way"])
            .await;
        let wanted = [(condition.to_owned(), reason.to_owned())];
        assert_eq!(host.conditions(&object), wanted, "{code:?}");
    }
    host.relay.pass_all();
    let asked = |manifest: &String| annotated(manifest, "drumlin.dev/reconcile-at: now");
    host.write("v.yaml", &manifests.each_ref().map(asked));
    for (code, ..) in REASONS {
        host.until(&format!("{}x", name(code)), &["True", "Created"])
            .await;
    }
}

#[tokio::test]
async fn a_volume_whose_name_another_one_has_says_so_until_that_is_deleted() {
    let host = Host::start().await;
    host.write("v.yaml", &[small("v")]);
    host.until("v", &["True"]).await;
    // A volume that is created again has the name of the former one.
    let name = host.object("Volume", "v")["status"]["csiName"].clone();
    host.write("v.yaml", &[absent(&small("v"))]);
    host.until("v", &["Deleted"]).await;
    let mut controller = host.agent.controller();
    let other = controller
        .create_volume(create(name.as_str().unwrap(), 8, &raw()))
        .await;
    let other = ok(other).volume.unwrap().volume_id;
    host.write("v.yaml", &[small("v")]);
    let conflict = ["False", "NameConflict", "CreateVolume"];
    host.until("v", &conflict).await;
    assert_eq!(
        host.object("Volume", "v")["status"]["volumeHandle"],
        Value::Null
    );
    let listed = controller.list_volumes(ListVolumesRequest::default()).await;
    let listed = ok(listed).entries.remove(0).volume.unwrap();
    assert_eq!(
        (&listed.volume_id, listed.capacity_bytes),
        (&other, 8 << 20)
    );
    ok(controller.delete_volume(delete(&other)).await);
    host.write(
        "v.yaml",
        &[annotated(&small("v"), "drumlin.dev/reconcile-at: now")],
    );
    host.until("v", &["True", "16Mi"]).await;
}

#[tokio::test]
async fn a_group_that_changes_between_two_attempts_of_its_snapshot_is_told() {
    let host = Reconciler::start().await;
    host.write("v.yaml", &[small("a"), small("b")]);
    host.write("g.yaml", &[group("g", "a b")]);
    host.until("g", &["True", "2 of 2"]).await;
    let call = "CreateVolumeGroupSnapshot";
    host.relay.on(call, "", Fault::Refuse(Code::Unavailable));
    host.write(
        "s.yaml",
        &[object("GroupSnapshot", "s", "", "groupName: g")],
    );
    host.until("s", &["False", "Unavailable"]).await;
    host.write("g.yaml", &[group("g", "a")]);
    host.until("g", &["True", "1 of 1"]).await;
    host.relay.pass_all();
    host.until("s", &["True", "SnapshotReady", "2 members of g"])
        .await;
    let mut controller = host.agent.controller();
    let taken = controller.list_snapshots(ListSnapshotsRequest::default());
    assert_eq!(ok(taken.await).entries.len(), 2);
    let state = text(host.agent.path("state"));
    let events = ["events", "dgsnap/s", "-o", "json", "--state-dir", &state];
    let events = host.agent.command(&events);
    let events: Vec<Value> = serde_json::from_slice(&events.stdout).unwrap();
    let reasons: Vec<&str> = events
        .iter()
        .map(|event| event["reason"].as_str().unwrap())
        .collect();
    let told = "MembershipChangedDuringSnapshot";
    assert!(reasons.ends_with(&[told, "SnapshotReady"]), "{events:#?}");
    assert_eq!(reasons.iter().filter(|reason| **reason == told).count(), 1);
}
