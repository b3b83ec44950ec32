//! Claims, their snapshots and copies, by the stock sidecars; and the same volumes in groups of ours.

use std::{fs, path::Path};

use drumlin_tests::{
    cluster::{Namespace, is_ready},
    programs::workspace,
};
use nix::sys::statvfs::statvfs;
use serde_json::Value;

use crate::{
    helpers::{get, home, put},
    sidecars::{NODE, Stack, handle, text},
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
    the_room_of_the_node_is_known(&stack);

    space.apply(&claim("data", "320Mi", ""));
    let data = stack.volume_of(&space, "data");
    assert!(handle(&data).starts_with(&format!("{NODE}/default/")));
    let place = data.pointer("/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0");
    assert_eq!(place.unwrap()["values"][0], NODE);
    // The node itself knows whose bytes it has.
    let record = home(&stack.agent, &handle(&data)).join("record.json");
    let record = fs::read_to_string(record).unwrap();
    let claim_of = format!(
        "csi.storage.k8s.io/pvc/namespace\\\":\\\"{}\\\"",
        space.name
    );
    assert!(record.contains(&claim_of), "{record}");
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

    copies_have_what_was_there(&stack, &space, &at).await;

    // What goes leaves nothing.
    kubelet.unmount(&data).await;
    space.kubectl(&["delete", "volumesnapshot,pvc", "--all", "--timeout=60s"]);
    nothing_is_left(&stack);

    stack.needed_no_more_rights();
}

/// How much the node has left is known before anything is asked for.
fn the_room_of_the_node_is_known(stack: &Stack) {
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
}

/// A copy of `data`, and one by way of a snapshot; what is mounted at `at` is written over meanwhile.
async fn copies_have_what_was_there(stack: &Stack, space: &Namespace<'_>, at: &Path) {
    let kubelet = stack.kubelet();
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
    stack.until(space, "volumesnapshot/moment", |now| {
        now["status"]["readyToUse"] == true
    });
    stack.volume_of(space, "copy");
    put(at, "file", b"written over");
    space.apply(&claim("restored", "640Mi", &from_snapshot("moment")));
    for claim in ["copy", "restored"] {
        let volume = stack.volume_of(space, claim);
        let at = kubelet.mount(&volume).await;
        assert_eq!(get(&at, "file"), b"precious", "{claim}");
        kubelet.unmount(&volume).await;
    }
    space.kubectl(&["delete", "pvc/copy", "pvc/restored", "--timeout=60s"]);
}

pub(crate) fn nothing_is_left(stack: &Stack) {
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
}

/// The page on Kubernetes: claims that are a group, a group snapshot of it, and volumes of that which pods can use.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_claims_is_restored_as_the_example_says() {
    let stack = Stack::start().await;
    let (space, kubelet) = (stack.cluster.namespace(), stack.kubelet());
    let example = |name: &str| {
        let path = workspace().join("examples/claims").join(name);
        fs::read_to_string(path).unwrap()
    };
    space.apply(&example("1-database.yaml"));
    let mut used = Vec::new();
    for name in ["data", "log"] {
        // What the scheduler says when it has found a node for the pod.
        let chosen = format!("volume.kubernetes.io/selected-node={NODE}");
        space.kubectl(&["annotate", &format!("pvc/{name}"), &chosen]);
        let volume = stack.volume_of(&space, name);
        let at = kubelet.mount(&volume).await;
        put(&at, "now", b"then");
        used.push((volume, at));
    }
    space.apply(&example("2-group.yaml"));
    for object in ["dvg/pg", "dgsnap/pg-before-upgrade"] {
        stack.until(&space, object, is_ready);
    }
    for (_, at) in &used {
        put(at, "now", b"later");
    }
    space.apply(&example("3-restore.yaml"));
    stack.until(&space, "dvg/pg-restored", is_ready);
    for name in ["data-restored", "log-restored"] {
        let restored = stack.until(&space, &format!("dv/{name}"), is_ready);
        let text = example("volume-and-claim.yaml.in")
            .replace("NAMESPACE", &space.name)
            .replace("NAME", name)
            .replace("NODE", &text(&restored["spec"]["nodeName"]))
            .replace("SIZE", &text(&restored["status"]["capacity"]))
            .replace("HANDLE", &text(&restored["status"]["volumeHandle"]));
        space.apply(&text);
        let volume = stack.volume_of(&space, name);
        let at = kubelet.mount(&volume).await;
        assert_eq!(get(&at, "now"), b"then", "{name}");
        kubelet.unmount(&volume).await;
    }
    for (volume, _) in &used {
        kubelet.unmount(volume).await;
    }

    // Claims of ours that go take no bytes with them; members leave their group before their volume goes.
    space.kubectl(&["delete", "pod/pg", "--force", "--grace-period=0"]);
    space.kubectl(&["delete", "pvc", "--all", "--timeout=60s"]);
    let left = || {
        stack
            .cluster
            .kubectl(&["get", "pv", "-o", "jsonpath={.items[*].status.phase}"])
    };
    stack.eventually(left, |left| left == "Released Released");
    space.kubectl(&["delete", "dgsnap,dvg", "--all", "--timeout=60s"]);
    for name in ["data-restored", "log-restored"] {
        assert!(is_ready(&space.get(&format!("dv/{name}"))));
    }
    stack.needed_no_more_rights();
}

fn group_snapshot_of(label: &str, name: &str) -> String {
    format!(
        "---\napiVersion: groupsnapshot.storage.k8s.io/v1\nkind: VolumeGroupSnapshot\nmetadata: {{name: {name}}}\nspec:\n  volumeGroupSnapshotClassName: drumlin\n  source: {{selector: {{matchLabels: {{app: {label}}}}}}}\n"
    )
}

/// The stock group snapshot: several claims at one point in time, each restored; and claims of two nodes, which have none.
#[tokio::test(flavor = "multi_thread")]
async fn a_stock_group_snapshot_is_a_point_in_time_of_the_claims_of_one_node() {
    let stack = Stack::of_nodes(&[NODE, "node-b"]).await;
    let (space, kubelet) = (stack.cluster.namespace(), stack.kubelet());
    space.apply(&[claim("data", "320Mi", ""), claim("log", "320Mi", "")].concat());
    let (data, log) = (
        stack.volume_of(&space, "data"),
        stack.volume_of(&space, "log"),
    );
    let (at_data, at_log) = (kubelet.mount(&data).await, kubelet.mount(&log).await);
    put(&at_data, "file", b"of data");
    put(&at_log, "file", b"of log");
    space.apply(&group_snapshot_of("pg", "both"));
    let taken = stack.until(&space, "volumegroupsnapshot/both", |now| {
        now["status"]["readyToUse"] == true
    });
    put(&at_data, "file", b"written over");
    put(&at_log, "file", b"written over");
    let content = text(&taken["status"]["boundVolumeGroupSnapshotContentName"]);
    let content = space.get(&format!("volumegroupsnapshotcontent/{content}"));
    let members = content["status"]["volumeSnapshotInfoList"]
        .as_array()
        .unwrap();
    assert_eq!(members.len(), 2, "{content}");
    assert!(text(&content["status"]["volumeGroupSnapshotHandle"]).starts_with(NODE));
    // Each member is a snapshot of its own, by which its claim is restored.
    let snapshots = || {
        let listed = space.kubectl(&["get", "volumesnapshot", "-o", "json"]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let items = listed["items"].as_array().unwrap().iter();
        let ready = items.filter(|one| one["status"]["readyToUse"] == true);
        let named = ready.map(|one| text(&one["metadata"]["name"]));
        named.collect::<Vec<_>>()
    };
    let snapshots = stack.eventually(snapshots, |found| found.len() == 2);
    let mut restored = Vec::new();
    for (index, snapshot) in snapshots.iter().enumerate() {
        let name = format!("restored-{index}");
        space.apply(&claim(&name, "320Mi", &from_snapshot(snapshot)));
        let volume = stack.volume_of(&space, &name);
        let at = kubelet.mount(&volume).await;
        restored.push(get(&at, "file"));
        kubelet.unmount(&volume).await;
    }
    restored.sort();
    assert_eq!(restored, [b"of data".to_vec(), b"of log".to_vec()]);

    // Of two nodes there is no point in time, and nothing is made.
    let other = claim("far", "320Mi", "")
        .replace(&format!("selected-node: {NODE}"), "selected-node: node-b");
    space.apply(&other.replace("app: pg", "app: far"));
    stack.volume_of(&space, "far");
    space.kubectl(&["label", "--overwrite", "pvc/log", "app=far"]);
    space.apply(&group_snapshot_of("far", "apart"));
    let apart = stack.until(&space, "volumegroupsnapshot/apart", |now| {
        now["status"]["error"]["message"]
            .as_str()
            .is_some_and(|message| message.contains("several nodes"))
    });
    assert_ne!(apart["status"]["readyToUse"], true);
    for agent in [&stack.agent].into_iter().chain(&stack.others) {
        let images = agent.path("state/images/snapshots");
        let found = fs::read_dir(images).map_or(0, Iterator::count);
        assert!(found <= 2, "{found} snapshots");
    }
    kubelet.unmount(&data).await;
    kubelet.unmount(&log).await;
    space.kubectl(&["delete", "volumegroupsnapshot", "--all", "--timeout=60s"]);
    space.kubectl(&["delete", "volumesnapshot,pvc", "--all", "--timeout=60s"]);
    nothing_is_left(&stack);
    stack.needed_no_more_rights();
}

/// What no node can give is refused before the claim is told otherwise; and the attributes of a volume change on every node.
#[tokio::test(flavor = "multi_thread")]
async fn growth_that_no_node_has_room_for_is_refused_and_a_claim_may_be_lowered() {
    let stack = Stack::start().await;
    let space = stack.cluster.namespace();
    space.apply(&claim("data", "320Mi", ""));
    let data = stack.volume_of(&space, "data");
    let ask = |size: &str| {
        let wider =
            format!(r#"{{"spec": {{"resources": {{"requests": {{"storage": "{size}"}}}}}}}}"#);
        space.kubectl(&["patch", "pvc/data", "--type=merge", "-p", &wider]);
    };
    ask("900Gi");
    let refused = stack.until(&space, "pvc/data", |now| {
        let status = &now["status"]["allocatedResourceStatuses"]["storage"];
        status == "ControllerResizeInfeasible"
    });
    assert_eq!(refused["status"]["capacity"]["storage"], "320Mi");
    let volume = format!("pv/{}", text(&data["metadata"]["name"]));
    assert_eq!(space.get(&volume)["spec"]["capacity"]["storage"], "320Mi");
    ask("640Mi");
    // The device has grown, though no pod uses the claim.
    stack.until(&space, &volume, |now| {
        now["spec"]["capacity"]["storage"] == "640Mi"
    });
    let image = home(&stack.agent, &handle(&data)).join("image");
    assert_eq!(fs::metadata(image).unwrap().len(), 640 << 20);

    // Attributes.
    let attributes = |class: &str| {
        let change = format!(r#"{{"spec": {{"volumeAttributesClassName": "{class}"}}}}"#);
        space.kubectl(&["patch", "pvc/data", "--type=merge", "-p", &change]);
        stack.until(&space, "pvc/data", |now| {
            now["status"]["currentVolumeAttributesClassName"] == class
        });
    };
    attributes("drumlin-protected");
    space.kubectl(&["delete", "pvc/data", "--timeout=60s"]);
    stack.until(&space, &volume, |now| {
        now["status"]["phase"] == "Failed" || now["status"]["phase"] == "Released"
    });
    assert!(home(&stack.agent, &handle(&data)).exists());
    stack.needed_no_more_rights();
}
