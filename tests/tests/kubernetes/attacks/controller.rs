//! Attacks with the token of the controller, which is that of the sidecars, too.

use drumlin_tests::{cluster::Cluster, storage::Scratch};
use serde_json::{Value, json};

use super::{
    trial::{
        Deed::{Create, Delete, Patch, PatchStatus, Read, Update},
        Target, Trial,
    },
    victims::{DRIVER, FOREIGN, SELECTED, Victims, on},
};
use crate::{
    policies::are_in_force,
    rbac::{SYSTEM, install},
};

/// What makes Kubernetes delete an object: an owner that there is not.
fn orphaned() -> Value {
    let owner = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "none",
        "uid": "00000000-0000-4000-8000-000000000000",
    });
    json!({"metadata": {"ownerReferences": [owner]}})
}

fn labelled() -> Value {
    json!({"metadata": {"labels": {"app": "other"}}})
}

fn annotated(key: &str, value: &Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn with_finalizers(all: &[&str]) -> Value {
    json!({"metadata": {"finalizers": all}})
}

/// Somebody who has stolen the controller's token, once the policies are in force.
async fn stolen(cluster: &Cluster, scratch: &Scratch) -> Trial {
    install(cluster);
    let stolen = cluster.as_account(scratch, "drumlin-controller", None);
    are_in_force(&stolen).await;
    Trial::of(cluster, &stolen).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controllers_token_writes_no_volume_that_is_not_ours_where_it_says() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    let mut trial = stolen(&cluster, &scratch).await;
    let victims = Victims::of(&cluster).await;
    let before = victims.versions().await;
    secrets_are_refused(&mut trial, &victims).await;
    places_are_refused(&mut trial, &victims).await;
    let foreign = victims.volume("foreign");
    let by = "the controller may write only volumes of csi.drumlin.dev";
    let forged = Target::of_the_cluster("PersistentVolume", &victims.named("forged"));
    let host = json!({"csi": null, "hostPath": {"path": "/etc"}});
    for spec in [
        victims.volume_spec(FOREIGN, &json!({})),
        victims.volume_spec(DRIVER, &host),
    ] {
        let object = forged.with(&spec, &json!({}));
        trial.refused(&forged, Create(object), by).await;
    }
    trial.refused(&foreign, Patch(labelled()), by).await;
    trial.refused(&foreign, Patch(orphaned()), by).await;
    trial
        .refused(&foreign, Patch(with_finalizers(&[])), by)
        .await;
    trial.refused(&foreign, Delete, by).await;

    // What it is for.
    let object = forged.with(&victims.volume_spec(DRIVER, &json!({})), &json!({}));
    trial.allowed(&forged, Create(object)).await;
    let ours = victims.volume("ours");
    let larger = json!({"spec": {"capacity": {"storage": "2Gi"}}});
    trial.allowed(&ours, Patch(larger)).await;
    trial.allowed(&ours, Patch(with_finalizers(&[]))).await;
    trial.allowed(&ours, Delete).await;
    // What nothing takes from it: any volume of ours can be bound, and deleted by a call.
    let bound = json!({"claimRef": {"namespace": victims.space.name, "name": "foreign"}});
    let object = forged.with(&victims.volume_spec(DRIVER, &bound), &json!({}));
    trial.allowed(&forged, Create(object)).await;
    let call = Target::inside(SYSTEM, "NodeCall", &victims.named("forged"));
    let delete = json!({"volumeId": format!("{}/default/any", victims.one)});
    let spec = json!({"nodeName": victims.one, "attempt": 1, "deleteVolume": delete});
    trial
        .allowed(&call, Create(call.with(&spec, &json!({}))))
        .await;
    trial.end();
    assert_eq!(victims.versions().await, before);
}

/// Secrets, and volumes for which kubelet or a sidecar would read one.
async fn secrets_are_refused(trial: &mut Trial, victims: &Victims<'_>) {
    let secret = Target::inside(&victims.space.name, "Secret", "secret");
    trial.refused(&secret, Read, "cannot get").await;
    let by = "the controller may write no volume that names a Secret";
    let forged = Target::of_the_cluster("PersistentVolume", &victims.named("forged"));
    let named = json!({"namespace": victims.space.name, "name": "secret"});
    for member in [
        "controllerPublishSecretRef",
        "nodeStageSecretRef",
        "nodePublishSecretRef",
        "controllerExpandSecretRef",
        "nodeExpandSecretRef",
    ] {
        let spec = victims.volume_spec(DRIVER, &json!({"csi": {member: named}}));
        let object = forged.with(&spec, &json!({}));
        trial.refused(&forged, Create(object), by).await;
    }
    let ours = victims.volume("ours");
    // Of the five these two can be given to a volume that there is.
    for member in ["controllerExpandSecretRef", "nodeExpandSecretRef"] {
        let deed = Patch(json!({"spec": {"csi": {member: named}}}));
        if member == "nodeExpandSecretRef" {
            trial.impossible(&ours, deed).await;
        } else {
            trial.refused(&ours, deed, by).await;
        }
    }
}

/// Volumes whose handle names another node than they say they are on.
async fn places_are_refused(trial: &mut Trial, victims: &Victims<'_>) {
    let (one, two) = (victims.one.as_str(), victims.two.as_str());
    let by = "a volume is on the node that its handle names, and nowhere else";
    let forged = Target::of_the_cluster("PersistentVolume", &victims.named("forged"));
    let term = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    let terms = |terms: &[Value]| json!({"required": {"nodeSelectorTerms": terms}});
    let key = "topology.drumlin.dev/node";
    for (node, affinity) in [
        ("on another node", on(&[two])),
        ("on this node or another", on(&[one, two])),
        ("missing", Value::Null),
        (
            "on this node, or on another by a second term",
            terms(&[term(key, "In", &[one]), term(key, "In", &[two])]),
        ),
        (
            "anywhere by a second term",
            terms(&[
                term(key, "In", &[one]),
                term("kubernetes.io/os", "In", &["linux"]),
            ]),
        ),
        (
            "not on the other node",
            terms(&[term(key, "NotIn", &[two])]),
        ),
        ("not on this node", terms(&[term(key, "NotIn", &[one])])),
        (
            "by another key",
            terms(&[term("kubernetes.io/hostname", "In", &[one])]),
        ),
        ("on the node without a name", on(&[""])),
        (
            "by a field of the node",
            terms(&[
                json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [one]}]}),
            ]),
        ),
    ] {
        let spec = victims.volume_spec(DRIVER, &json!({"nodeAffinity": affinity}));
        let object = forged.with(&spec, &annotations_of(node));
        trial.refused(&forged, Create(object), by).await;
    }
    // A handle that begins as the name of the node does is not one of that node.
    for handle in [
        format!("{one}0/default/any"),
        one.to_owned(),
        "any".to_owned(),
    ] {
        let spec = victims.volume_spec(DRIVER, &json!({"csi": {"volumeHandle": handle}}));
        let object = forged.with(&spec, &json!({}));
        trial.refused(&forged, Create(object), by).await;
    }
    // No values are not valid for anybody.
    let spec = victims.volume_spec(DRIVER, &json!({"nodeAffinity": on(&[])}));
    let object = forged.with(&spec, &json!({}));
    trial.impossible(&forged, Create(object)).await;
    // A volume that there is says where it is once.
    let anywhere = victims.volume("anywhere");
    let moved = json!({"spec": {"nodeAffinity": on(&[two])}});
    trial.refused(&anywhere, Patch(moved.clone()), by).await;
    trial.refused(&anywhere, Patch(labelled()), by).await;
    trial
        .impossible(&victims.volume("ours"), Patch(moved))
        .await;
}

/// What a volume of a failed deed is recognized by.
fn annotations_of(what: &str) -> Value {
    json!({"annotations": {"example.com/what": what}})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controllers_token_makes_no_object_destroy_anything() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    let mut trial = stolen(&cluster, &scratch).await;
    let victims = Victims::of(&cluster).await;
    let before = victims.versions().await;
    let notes = "the controller may change neither annotations nor labels of an object";
    let fields = "the controller may set only the node of an object";
    for kind in ["Volume", "VolumeGroup", "Snapshot", "GroupSnapshot"] {
        let own = victims.ours(kind, "own");
        for key in ["state", "recreate", "abandon", "paused", "reconcile-at"] {
            let note = annotated(&format!("drumlin.dev/{key}"), &json!("absent"));
            trial.refused(&own, Patch(note), notes).await;
        }
        trial.refused(&own, Patch(labelled()), notes).await;
        let destroys = json!({"spec": {"deletionPolicy": "Delete"}});
        trial.refused(&own, Patch(destroys), fields).await;
        let unsaid = json!({"metadata": {"annotations": {"drumlin.dev/state": "absent"}}, "spec": {"deletionPolicy": "Delete"}});
        trial.refused(&own, Patch(unsaid), notes).await;
        let by = "the controller may give an object no owner";
        trial.refused(&own, Patch(orphaned()), by).await;
        let by = "the controller may take no finalizer but that of an agent";
        trial.refused(&own, Patch(with_finalizers(&[])), by).await;
        trial.refused(&own, Delete, "cannot delete").await;
        let moved = json!({"spec": {"nodeName": victims.two}});
        trial.impossible(&own, Patch(moved)).await;
        // What it is for.
        let given = json!({"spec": {"nodeName": victims.two}});
        trial
            .allowed(&victims.ours(kind, "free"), Patch(given))
            .await;
        let released = with_finalizers(&["example.com/kept"]);
        trial.allowed(&own, Patch(released)).await;
        let status = json!({"status": {"observedGeneration": 1}});
        trial.allowed(&own, PatchStatus(status)).await;
        trial.sets_no_annotation(&own, "drumlin.dev/state").await;
    }
    let own = victims.ours("Volume", "own");
    let adopted = annotated("drumlin.dev/adopt", &json!("other/Volume/data"));
    trial
        .refused(&own, Patch(adopted), "ValidatingAdmissionPolicy")
        .await;
    let larger = json!({"spec": {"capacity": "64Mi"}});
    trial.refused(&own, Patch(larger), fields).await;
    let mounted = json!({"spec": {"mount": {"path": "/srv/data"}}});
    trial.refused(&own, Patch(mounted), fields).await;
    let made = victims.ours("Volume", "forged");
    let object = made.with(
        &json!({"nodeName": victims.one, "capacity": "32Mi"}),
        &json!({}),
    );
    trial.refused(&made, Create(object), "cannot create").await;
    // What a node holds is given up by people.
    let storage = Target::of_the_cluster("NodeStorage", &victims.one);
    let abandoned = annotated("drumlin.dev/abandon", &json!(victims.one));
    trial
        .refused(&storage, Patch(abandoned), "cannot patch")
        .await;
    trial.refused(&storage, Delete, "cannot delete").await;
    let by = "the controller may not report the storage of a node";
    let report = json!({"status": {"agentVersion": "9.9.9"}});
    trial.refused(&storage, PatchStatus(report), by).await;
    let class = json!({
        "name": "default", "kind": "directory", "size": 1, "promised": 1, "available": 1,
        "maximumVolume": 1, "volumes": 1, "ready": true,
    });
    let report = json!({"status": {"classes": [class]}});
    trial.refused(&storage, PatchStatus(report), by).await;
    let unclaimed = json!({"status": {"unclaimed": [{"volumeHandle": "any", "capacity": 1}]}});
    trial.allowed(&storage, PatchStatus(unclaimed)).await;
    let labels = json!({"status": {"nodeLabels": {"disk": "nvme"}}});
    trial.allowed(&storage, PatchStatus(labels)).await;
    trial.end();
    assert_eq!(victims.versions().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controllers_token_changes_nothing_that_tenants_ask_for() {
    let (cluster, scratch) = (Cluster::of_the_lab(), Scratch::new());
    let mut trial = stolen(&cluster, &scratch).await;
    let victims = Victims::of(&cluster).await;
    let before = victims.versions().await;
    claims_are_refused(&mut trial, &victims).await;
    let kept = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
    for name in ["ours", "foreign"] {
        let snapshot = victims.snapshot(name);
        let by = "the controller may not change the labels of a tenant's object";
        trial.refused(&snapshot, Update(labelled()), by).await;
        let by = "the controller may give a tenant's object no owner";
        trial.refused(&snapshot, Update(orphaned()), by).await;
        let by = "the controller may set and take only the finalizers of the provisioner";
        let finalizers = with_finalizers(&["example.com/kept"]);
        trial.refused(&snapshot, Update(finalizers), by).await;
        let by = "the controller may not set annotations of a tenant's object";
        let note = annotated("example.com/note", &json!("1"));
        trial.refused(&snapshot, Update(note), by).await;
        trial.refused(&snapshot, Delete, "cannot delete").await;
        trial
            .allowed(&snapshot, Update(with_finalizers(&[kept])))
            .await;
    }
    contents_are_refused(&mut trial, &victims).await;
    trial.end();
    assert_eq!(victims.versions().await, before);
}

/// Claims of any driver: the sidecars set a finalizer and the status, and take the node off those of ours.
async fn claims_are_refused(trial: &mut Trial, victims: &Victims<'_>) {
    let copied = "provisioner.storage.kubernetes.io/cloning-protection";
    let protected = "kubernetes.io/pvc-protection";
    let not_needed = "volume.kubernetes.io/node-expansion-not-required";
    let set = "the controller may not set annotations of a tenant's object";
    let taken = "the controller may not take annotations off a tenant's object";
    let bound = "the controller may not change whether a claim is bound";
    for name in ["ours", "foreign"] {
        let claim = victims.claim(name);
        for (deed, by) in [
            (
                labelled(),
                "the controller may not change the labels of a tenant's object",
            ),
            (
                orphaned(),
                "the controller may give a tenant's object no owner",
            ),
            (annotated("example.com/note", &json!("1")), set),
            (annotated(SELECTED, &json!(victims.one)), set),
            (
                annotated("volume.kubernetes.io/storage-provisioner", &Value::Null),
                taken,
            ),
        ] {
            trial.refused(&claim, Update(deed.clone()), by).await;
            // A status can be written by which the rest of a claim changes.
            trial.refused(&claim, PatchStatus(deed), by).await;
        }
        let spec = json!({"spec": {"volumeName": victims.named("ours")}});
        let by = "the controller may not change what a tenant asks for";
        trial.refused(&claim, Update(spec), by).await;
        let by = "the controller may set and take only the finalizers of the provisioner";
        trial
            .refused(&claim, Update(with_finalizers(&[])), by)
            .await;
        let lost = json!({"status": {"phase": "Lost"}});
        trial.refused(&claim, PatchStatus(lost), bound).await;
        trial.refused(&claim, Delete, "cannot delete").await;
        trial
            .refused(&claim, Patch(labelled()), "cannot patch")
            .await;
        // What the provisioner and the resizer do.
        let finalizers = with_finalizers(&[protected, copied]);
        trial.allowed(&claim, Update(finalizers)).await;
        let noted = annotated(not_needed, &json!("true"));
        trial.allowed(&claim, PatchStatus(noted)).await;
        let grown = json!({"status": {"capacity": {"storage": "2Gi"}}});
        trial.allowed(&claim, PatchStatus(grown)).await;
    }
    let unscheduled = annotated(SELECTED, &Value::Null);
    trial
        .allowed(&victims.claim("ours"), Update(unscheduled.clone()))
        .await;
    trial
        .refused(&victims.claim("foreign"), Update(unscheduled), taken)
        .await;
    let made = victims.claim("forged");
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let object = made.with(&spec, &json!({}));
    trial.refused(&made, Create(object), "cannot create").await;
}

/// Contents of snapshots: the snapshotter writes annotations, the finalizer and the status of those of ours.
async fn contents_are_refused(trial: &mut Trial, victims: &Victims<'_>) {
    let being_created = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
    let noted = annotated(being_created, &json!("yes"));
    let status = json!({"status": {"readyToUse": true}});
    let by = "the controller may write only contents of csi.drumlin.dev";
    for foreign in [victims.content("foreign"), victims.group_content("foreign")] {
        for deed in [noted.clone(), labelled(), orphaned()] {
            trial.refused(&foreign, Patch(deed), by).await;
        }
        trial
            .refused(&foreign, PatchStatus(status.clone()), by)
            .await;
        trial.refused(&foreign, Delete, "cannot delete").await;
    }
    let by = "nor change what they are about";
    for own in [victims.content("ours"), victims.group_content("ours")] {
        let destroys = json!({"spec": {"deletionPolicy": "Delete"}});
        trial.refused(&own, Patch(destroys), by).await;
        trial.refused(&own, Patch(orphaned()), by).await;
        trial.refused(&own, Delete, "cannot delete").await;
        trial.allowed(&own, Patch(noted.clone())).await;
        trial.allowed(&own, PatchStatus(status.clone())).await;
    }
}
