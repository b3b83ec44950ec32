//! Attacks with the token of a node's agent.

use drumlin_tests::{cluster::Cluster, storage::Scratch};
use serde_json::{Value, json};

use super::{
    trial::{
        Deed::{Create, Delete, Patch, PatchStatus, Read, Update},
        Target, Trial,
    },
    victims::{DRIVER, SCHEDULED, SCHEDULED_FOREIGN, Victims},
};
use crate::{
    policies::are_in_force,
    rbac::{SYSTEM, install},
};

const KINDS: [&str; 5] = [
    "Volume",
    "VolumeGroup",
    "Snapshot",
    "GroupSnapshot",
    "SnapshotSchedule",
];
const OWN_NODE: &str = "an agent may write only objects of its own node";
const SCHEDULES: &str = "an agent creates and deletes only the snapshots of schedules";

/// An answer to a call, as an agent writes it.
fn answer() -> Value {
    json!({"status": {"phase": "Done", "attempt": 1, "runs": 1, "code": "OK", "deleteVolume": {}}})
}

/// A report of a node's storage, as an agent writes it.
fn report() -> Value {
    json!({"status": {"agentVersion": "9.9.9"}})
}

async fn with_policies(cluster: &Cluster, scratch: &Scratch) {
    install(cluster);
    are_in_force(&cluster.as_account(scratch, "drumlin-controller", None)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nodes_token_changes_nothing_that_is_not_of_its_node() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    with_policies(&cluster, &scratch).await;
    let victims = Victims::of(&cluster).await;
    let before = victims.versions().await;
    let stolen = cluster.as_account(&scratch, "drumlin-agent", Some(&victims.one));
    let mut trial = Trial::of(&cluster, &stolen).await;
    volumes_and_claims_are_refused(&mut trial, &victims).await;
    calls_and_storages_are_refused(&mut trial, &victims).await;
    objects_of_other_nodes_are_refused(&mut trial, &victims).await;
    // What it is for.
    trial
        .allowed(&Victims::call(&victims.one), PatchStatus(answer()))
        .await;
    let storage = Target::of_the_cluster("NodeStorage", &victims.one);
    trial.allowed(&storage, PatchStatus(report())).await;
    trial
        .sets_no_annotation(&storage, "drumlin.dev/abandon")
        .await;
    let handle = format!("{}/default/any", victims.two);
    let unclaimed = json!({"status": {"unclaimed": [{"volumeHandle": handle, "capacity": 1}]}});
    let by = "an agent does not say which volumes are unclaimed";
    trial.refused(&storage, PatchStatus(unclaimed), by).await;
    let labels = json!({"status": {"nodeLabels": {"disk": "nvme"}}});
    let by = "an agent does not say which labels its node has";
    trial.refused(&storage, PatchStatus(labels), by).await;
    for kind in KINDS {
        let own = victims.ours(kind, "own");
        let finalizers = json!({"metadata": {"finalizers": []}});
        trial.allowed(&own, Patch(finalizers)).await;
        let status = json!({"status": {"observedGeneration": 1}});
        trial.allowed(&own, PatchStatus(status)).await;
    }
    // What no right takes from it: the calls and objects of other nodes can be read.
    trial.allowed(&Victims::call(&victims.two), Read).await;
    trial
        .allowed(&victims.ours("Volume", "foreign"), Read)
        .await;
    trial.end();
    assert_eq!(victims.versions().await, before);
}

/// A volume with a Secret for kubelet to read, one that a claim is bound to, claims, snapshots, Secrets.
async fn volumes_and_claims_are_refused(trial: &mut Trial, victims: &Victims<'_>) {
    let (foreign, space) = (victims.claim("foreign"), &victims.space.name);
    let forged = Target::of_the_cluster("PersistentVolume", &victims.named("forged"));
    let secret = json!({"csi": {"nodeStageSecretRef": {"namespace": space, "name": "secret"}}});
    let claimed = json!({"claimRef": {"namespace": space, "name": "foreign"}});
    for changes in [&secret, &claimed, &json!({})] {
        let object = forged.with(&victims.volume_spec(DRIVER, changes), &json!({}));
        trial
            .refused(&forged, Create(object), "cannot create")
            .await;
    }
    for name in ["ours", "foreign"] {
        let volume = victims.volume(name);
        trial
            .refused(&volume, Patch(json!({"spec": claimed})), "cannot patch")
            .await;
        trial.refused(&volume, Delete, "cannot delete").await;
    }
    for deed in [
        json!({"metadata": {"labels": {"app": "other"}}}),
        json!({"spec": {"volumeName": victims.named("ours")}}),
    ] {
        trial
            .refused(&foreign, Patch(deed.clone()), "cannot patch")
            .await;
        trial.refused(&foreign, Update(deed), "cannot update").await;
    }
    let labels = json!({"metadata": {"labels": {"app": "other"}}});
    trial
        .refused(
            &victims.claim("ours"),
            PatchStatus(labels.clone()),
            "cannot patch",
        )
        .await;
    trial.refused(&foreign, Delete, "cannot delete").await;
    trial.refused(&foreign, Read, "cannot get").await;
    let secret = Target::inside(space, "Secret", "secret");
    trial.refused(&secret, Read, "cannot get").await;
    for content in [
        victims.snapshot("ours"),
        victims.content("ours"),
        victims.group_content("ours"),
    ] {
        trial
            .refused(&content, Patch(labels.clone()), "cannot patch")
            .await;
        trial.refused(&content, Delete, "cannot delete").await;
    }
}

/// Calls answered for another node, made and deleted; reports forged.
async fn calls_and_storages_are_refused(trial: &mut Trial, victims: &Victims<'_>) {
    let (one, two) = (&victims.one, &victims.two);
    let other = Victims::call(two);
    trial.refused(&other, PatchStatus(answer()), OWN_NODE).await;
    for call in [&other, &Victims::call(one)] {
        let again = json!({"spec": {"attempt": 2}});
        trial.refused(call, Patch(again), "cannot patch").await;
        trial.refused(call, Delete, "cannot delete").await;
    }
    let made = Target::inside(SYSTEM, "NodeCall", &victims.named("forged"));
    for node in [one, two] {
        let delete = json!({"volumeId": format!("{node}/default/any")});
        let call = json!({"nodeName": node, "attempt": 1, "deleteVolume": delete});
        let call = made.with(&call, &json!({}));
        trial.refused(&made, Create(call), "cannot create").await;
    }
    let storage = Target::of_the_cluster("NodeStorage", two);
    trial
        .refused(&storage, PatchStatus(report()), OWN_NODE)
        .await;
    for node in [one, two] {
        let storage = Target::of_the_cluster("NodeStorage", node);
        let abandon = json!({"metadata": {"annotations": {"drumlin.dev/abandon": node}}});
        trial
            .refused(&storage, Patch(abandon), "cannot patch")
            .await;
        trial.refused(&storage, Delete, "cannot delete").await;
    }
    let made = Target::of_the_cluster("NodeStorage", &victims.named("forged"));
    let storage = made.with(&json!({}), &json!({}));
    trial.refused(&made, Create(storage), "cannot create").await;
}

/// Objects of another node, and those of none.
async fn objects_of_other_nodes_are_refused(trial: &mut Trial, victims: &Victims<'_>) {
    let (one, two) = (&victims.one, &victims.two);
    let destroy = json!({
        "metadata": {"annotations": {"drumlin.dev/state": "absent"}},
        "spec": {"deletionPolicy": "Delete"},
    });
    let status = json!({"status": {"observedGeneration": 1}});
    for kind in KINDS {
        let foreign = victims.ours(kind, "foreign");
        trial
            .refused(&foreign, Patch(destroy.clone()), OWN_NODE)
            .await;
        trial
            .refused(&foreign, PatchStatus(status.clone()), OWN_NODE)
            .await;
        // Of snapshots it deletes those of schedules.
        let is_snapshot = matches!(kind, "Snapshot" | "GroupSnapshot");
        let by = |policy| if is_snapshot { policy } else { "cannot delete" };
        trial.refused(&foreign, Delete, by(OWN_NODE)).await;
        let free = victims.ours(kind, "free");
        for (node, by) in [(one, "an agent gives no object a node"), (two, OWN_NODE)] {
            let taken = json!({"spec": {"nodeName": node}});
            trial.refused(&free, Patch(taken), by).await;
        }
        trial
            .refused(&free, PatchStatus(status.clone()), OWN_NODE)
            .await;
        let own = victims.ours(kind, "own");
        trial.refused(&own, Delete, by(SCHEDULES)).await;
        let moved = json!({"spec": {"nodeName": two}});
        trial.impossible(&own, Patch(moved)).await;
        trial
            .impossible(&foreign, Patch(json!({"spec": {"nodeName": one}})))
            .await;
    }
    let made = victims.ours("Volume", "forged");
    let object = made.with(&json!({"nodeName": one, "capacity": "32Mi"}), &json!({}));
    trial.refused(&made, Create(object), "cannot create").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nodes_token_makes_and_deletes_no_snapshots_but_those_of_schedules_of_its_node() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    with_policies(&cluster, &scratch).await;
    let victims = Victims::of(&cluster).await;
    let before = victims.versions().await;
    let stolen = cluster.as_account(&scratch, "drumlin-agent", Some(&victims.one));
    let mut trial = Trial::of(&cluster, &stolen).await;
    let of = |node: &str| json!({"nodeName": node, "source": {"volumeName": "own"}});
    let labelled = json!({"labels": {"drumlin.dev/schedule": "daily"}});
    let name = "daily-20261127t130000z";
    let snapshot = victims.ours("Snapshot", name);
    let own = of(&victims.one);
    for (target, spec, metadata, by) in [
        (&snapshot, &of(&victims.two), labelled.clone(), OWN_NODE),
        (&snapshot, &own, json!({}), SCHEDULES),
        (
            &snapshot,
            &own,
            json!({"labels": {"drumlin.dev/schedule": "hourly"}}),
            SCHEDULES,
        ),
        (
            &victims.ours("Snapshot", "daily-any"),
            &own,
            labelled.clone(),
            SCHEDULES,
        ),
        (
            &snapshot,
            &own,
            json!({
                "labels": {"drumlin.dev/schedule": "daily"},
                "annotations": {"drumlin.dev/state": "absent"},
            }),
            "an agent creates no object with annotations, owners or finalizers",
        ),
    ] {
        let object = target.with(spec, &metadata);
        trial.refused(target, Create(object), by).await;
    }
    // A snapshot of a tenant does not become one of a schedule.
    let tenants = victims.ours("Snapshot", "own");
    let label = json!({"metadata": {"labels": {"drumlin.dev/schedule": "o"}}});
    let by = "an agent does not change the labels of an object";
    trial.refused(&tenants, Patch(label), by).await;
    let schedule = victims.ours("SnapshotSchedule", "forged");
    let spec =
        json!({"nodeName": victims.one, "target": {"volumeName": "own"}, "schedule": "@daily"});
    let object = schedule.with(&spec, &json!({}));
    trial
        .refused(&schedule, Create(object), "cannot create")
        .await;
    // What it is for.
    let object = snapshot.with(&own, &labelled);
    trial.allowed(&snapshot, Create(object)).await;
    let deleted = victims.ours("Snapshot", SCHEDULED);
    trial.allowed(&deleted, Delete).await;
    let foreign = victims.ours("Snapshot", SCHEDULED_FOREIGN);
    trial.refused(&foreign, Delete, OWN_NODE).await;
    trial.end();
    assert_eq!(victims.versions().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_an_agent_that_is_bound_to_no_node_writes_nothing() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    with_policies(&cluster, &scratch).await;
    let victims = Victims::of(&cluster).await;
    let before = victims.versions().await;
    let stolen = cluster.as_account(&scratch, "drumlin-agent", None);
    let mut trial = Trial::of(&cluster, &stolen).await;
    let by = "the token of an agent must be bound to its node";
    trial
        .refused(&Victims::call(&victims.one), PatchStatus(answer()), by)
        .await;
    let storage = Target::of_the_cluster("NodeStorage", &victims.one);
    trial.refused(&storage, PatchStatus(report()), by).await;
    for kind in KINDS {
        for name in ["own", "free"] {
            let object = victims.ours(kind, name);
            let note = json!({"metadata": {"annotations": {"drumlin.dev/reconcile-at": "1"}}});
            trial.refused(&object, Patch(note), by).await;
            let status = json!({"status": {"observedGeneration": 1}});
            trial.refused(&object, PatchStatus(status), by).await;
        }
    }
    trial.end();
    assert_eq!(victims.versions().await, before);
}
