//! Attacks by a tenant who may edit in a namespace.

use drumlin_tests::{cluster::Cluster, storage::Scratch};
use serde_json::json;

use super::{
    trial::{
        Deed::{Create, Delete, Patch, PatchStatus, Read},
        Target, Trial,
    },
    victims::Victims,
};
use crate::rbac::{SYSTEM, install};

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_chooses_no_class_no_node_and_no_path_of_a_host() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    install(&cluster);
    let victims = Victims::of(&cluster).await;
    let before = victims.versions().await;
    let own = cluster.namespace();
    let user = cluster.name("editor");
    for part in ["drumlin-view", "drumlin-edit"] {
        let (role, user) = (format!("--clusterrole={part}"), format!("--user={user}"));
        own.kubectl(&["create", "rolebinding", part, &role, &user]);
    }
    let mut trial = Trial::of(&cluster, &cluster.as_user(&scratch, &user)).await;

    // A volume names a node, a class and a path of the host.
    let volume = Target::inside(&own.name, "Volume", "forged");
    for more in [
        json!({"nodeName": victims.one}),
        json!({"deviceClass": "default"}),
        json!({"mount": {"path": "/srv/data"}}),
    ] {
        let mut spec = json!({"capacity": "32Mi"});
        super::trial::merge(&mut spec, &more);
        let object = volume.with(&spec, &json!({}));
        trial
            .refused(&volume, Create(object), "cannot create")
            .await;
    }
    // Nor do the kinds that a tenant may write have any such field.
    for (kind, spec) in [
        ("VolumeGroup", json!({"selector": {}})),
        ("Snapshot", json!({"source": {"volumeName": "data"}})),
        ("GroupSnapshot", json!({"groupName": "data"})),
        (
            "SnapshotSchedule",
            json!({"target": {"volumeName": "data"}, "schedule": "@daily"}),
        ),
    ] {
        let target = Target::inside(&own.name, kind, "own");
        let object = target.with(&spec, &json!({}));
        trial.allowed(&target, Create(object)).await;
        let adopted = json!({"annotations": {"drumlin.dev/adopt": "other/Volume/data"}});
        let object = target.with(&spec, &adopted);
        let by = "the annotation drumlin.dev/adopt is for administrators";
        trial.refused(&target, Create(object), by).await;
        let status = json!({"status": {"observedGeneration": 1}});
        let elsewhere = victims.ours(kind, "foreign");
        trial
            .refused(&elsewhere, PatchStatus(status), "cannot patch")
            .await;
        // In the namespace of somebody else.
        trial.refused(&elsewhere, Read, "cannot get").await;
        trial.refused(&elsewhere, Delete, "cannot delete").await;
        let forged = victims.ours(kind, "forged");
        let object = forged.with(&spec, &json!({}));
        trial
            .refused(&forged, Create(object), "cannot create")
            .await;
    }
    // What the parts of the driver say to each other is not for tenants.
    let label = json!({"metadata": {"labels": {"app": "other"}}});
    for target in [
        Victims::call(&victims.one),
        Target::of_the_cluster("NodeStorage", &victims.one),
        victims.volume("ours"),
    ] {
        trial.refused(&target, Read, "cannot get").await;
        trial
            .refused(&target, Patch(label.clone()), "cannot patch")
            .await;
        trial.refused(&target, Delete, "cannot delete").await;
    }
    let forged = Target::inside(SYSTEM, "NodeCall", &victims.named("forged"));
    let delete = json!({"volumeId": format!("{}/default/any", victims.one)});
    let call = json!({"nodeName": victims.one, "attempt": 1, "deleteVolume": delete});
    let call = forged.with(&call, &json!({}));
    trial.refused(&forged, Create(call), "cannot create").await;
    trial.end();
    assert_eq!(victims.versions().await, before);
}
