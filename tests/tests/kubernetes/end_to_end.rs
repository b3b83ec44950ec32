//! Claims, their snapshots and copies, by the stock sidecars; and the same volumes in groups of ours.

use std::fs;

use nix::sys::statvfs::statvfs;
use serde_json::Value;

use crate::{
    kit::{get, put},
    node::{manifest, volume},
    stack::{NODE, Stack, handle, text},
};

/// A claim that a pod on this node uses: the scheduler has said so.
pub(crate) fn claim(name: &str, size: &str, more: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: {name}\n  labels: {{app: pg}}\n  annotations: {{volume.kubernetes.io/selected-node: {NODE}}}\nspec:\n  storageClassName: drumlin-xfs\n  accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: {size}}}}}\n  {more}\n"
    )
}

pub(crate) fn snapshot_of(claim: &str, name: &str) -> String {
    format!(
        "---\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {{name: {name}}}\nspec:\n  volumeSnapshotClassName: drumlin\n  source: {{persistentVolumeClaimName: {claim}}}\n"
    )
}

pub(crate) fn from_snapshot(snapshot: &str) -> String {
    format!(
        "dataSource: {{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: {snapshot}}}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_live_from_their_first_pod_to_their_end() {
    let stack = Stack::start().await;
    let (space, kubelet) = (stack.cluster.namespace(), stack.kubelet());

    // How much the node has left is known before anything is asked for.
    let system = |object: &str| {
        let words = ["-n", "drumlin-system", "get", object, "-o", "json"];
        serde_json::from_str::<Value>(&stack.cluster.kubectl(&words)).unwrap()
    };
    let capacities = || system("csistoragecapacities");
    let count = |found: &Value| found["items"].as_array().map_or(0, Vec::len);
    // One for each storage class of ours.
    let found = stack.eventually(capacities, |found| count(found) == 3);
    let capacity = &found["items"][0];
    assert!(capacity["capacity"].is_string(), "{capacity}");
    let place = &capacity["nodeTopology"]["matchLabels"]["topology.drumlin.dev/node"];
    assert_eq!(place, NODE, "{capacity}");

    space.apply(&claim("data", "320Mi", ""));
    let data = stack.volume_of(&space, "data");
    assert!(handle(&data).starts_with(&format!("{NODE}/default/")));
    let place = data.pointer("/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0");
    assert_eq!(place.unwrap()["values"][0], NODE);
    let at = kubelet.mount(&data).await;
    put(&at, "file", b"precious");

    // It grows while it is used: the resizer says how large it is to be, and kubelet has it grown.
    let wider = r#"{"spec": {"resources": {"requests": {"storage": "640Mi"}}}}"#;
    space.kubectl(&["patch", "pvc/data", "--type=merge", "-p", wider]);
    let name = text(&data["metadata"]["name"]);
    stack.until(&space, &format!("pv/{name}"), |now| {
        now["spec"]["capacity"]["storage"] == "640Mi"
    });
    let before = statvfs(&at).unwrap().blocks();
    assert_eq!(kubelet.grow(&data, 640 << 20).await, 640 << 20);
    assert!(statvfs(&at).unwrap().blocks() > before);

    // A copy, and one by way of a snapshot.
    space.apply(
        &[
            claim(
                "copy",
                "640Mi",
                "dataSource: {kind: PersistentVolumeClaim, name: data}",
            ),
            snapshot_of("data", "moment"),
        ]
        .concat(),
    );
    stack.until(&space, "volumesnapshot/moment", |now| {
        now["status"]["readyToUse"] == true
    });
    put(&at, "file", b"written over");
    space.apply(&claim("restored", "640Mi", &from_snapshot("moment")));
    for claim in ["copy", "restored"] {
        let volume = stack.volume_of(&space, claim);
        let at = kubelet.mount(&volume).await;
        assert_eq!(get(&at, "file"), b"precious", "{claim}");
        kubelet.unmount(&volume).await;
    }
    space.kubectl(&["delete", "pvc/copy", "pvc/restored", "--timeout=60s"]);

    // Claims are members of a group by their labels, and a moment of it is restored as a volume of ours.
    space.apply(&claim("wal", "320Mi", ""));
    let wal = stack.volume_of(&space, "wal");
    let beside = kubelet.mount(&wal).await;
    for (at, bytes) in [(&at, "data 1"), (&beside, "wal 1")] {
        put(at, "log", bytes.as_bytes());
    }
    space.apply(
        &[
            manifest(
                "VolumeGroup",
                "pg",
                "selector: {matchLabels: {app: pg}}\n  minMembers: 2",
            ),
            manifest("GroupSnapshot", "night", "groupName: pg"),
        ]
        .concat(),
    );
    let is_ready = drumlin_tests::cluster::is_ready;
    stack.until(&space, "dvg/pg", is_ready);
    stack.until(&space, "dgsnap/night", is_ready);
    for at in [&at, &beside] {
        put(at, "log", b"later");
    }
    let restore = "capacity: 640Mi\n  fsType: xfs\n  deletionPolicy: Delete\n  source: {groupSnapshot: {name: night, member: data}}";
    space.apply(&volume("data-of-night", restore));
    let restored = stack.until(&space, "dv/data-of-night", is_ready);
    // Kubelet mounts volumes of Kubernetes, so that one is written by hand for it.
    let mut stand_in = data.clone();
    stand_in["metadata"]["name"] = "data-of-night".into();
    stand_in["spec"]["csi"]["volumeHandle"] = restored["status"]["volumeHandle"].clone();
    let shown = kubelet.mount(&stand_in).await;
    assert_eq!(get(&shown, "log"), b"data 1");
    kubelet.unmount(&stand_in).await;

    // What goes leaves nothing: members leave their group first.
    for volume in [&data, &wal] {
        kubelet.unmount(volume).await;
    }
    space.kubectl(&["delete", "dgsnap,dvg,dv", "--all", "--timeout=60s"]);
    space.kubectl(&["delete", "volumesnapshot,pvc", "--all", "--timeout=60s"]);
    let volumes = || {
        stack
            .cluster
            .kubectl(&["get", "pv,volumesnapshotcontent", "-o", "name"])
    };
    stack.eventually(volumes, String::is_empty);
    let images = stack.agent.path("state/images/volumes");
    let left: Vec<_> = fs::read_dir(images)
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    assert!(left.is_empty(), "{left:?}");

    // All of it with the rights that the manifests give.
    assert_eq!(stack.said("forbidden"), "");
    assert!(
        !stack.agent.log().contains("forbidden"),
        "{}",
        stack.agent.log()
    );
}
