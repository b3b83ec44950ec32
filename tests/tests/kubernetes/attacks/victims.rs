//! What there is to be attacked: two nodes, what they have, and what is none of ours.

use drumlin_tests::cluster::{Cluster, Namespace};
use serde_json::{Value, json};

use super::trial::{Target, create, versions};
use crate::rbac::{SYSTEM, two_nodes};

/// The snapshots that a schedule took, of either node.
pub(super) const SCHEDULED: &str = "daily-20261126t130000z";
pub(super) const SCHEDULED_FOREIGN: &str = "daily-20261125t130000z";

/// Our driver.
pub(super) const DRIVER: &str = "csi.drumlin.dev";
/// One that is none of ours.
pub(super) const FOREIGN: &str = "csi.example.com";
/// What a provisioner notes down at a claim that it is to make a volume for.
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// What the scheduler notes down there.
pub(super) const SELECTED: &str = "volume.kubernetes.io/selected-node";

/// Objects of a cluster.
pub(super) struct Victims<'a> {
    /// The namespace of a tenant.
    pub(super) space: Namespace<'a>,
    /// The node whose token is stolen.
    pub(super) one: String,
    /// Another node.
    pub(super) two: String,
    cluster: &'a Cluster,
    all: Vec<(Target, Value)>,
}

impl<'a> Victims<'a> {
    pub(super) async fn of(cluster: &'a Cluster) -> Self {
        let (one, two) = two_nodes(cluster);
        let mut victims = Self {
            space: cluster.namespace(),
            one,
            two,
            cluster,
            all: Vec::new(),
        };
        victims.add_ours();
        victims.add_volumes();
        victims.add_snapshots();
        create(cluster, &victims.all).await;
        victims
    }

    fn add(&mut self, target: Target, metadata: &Value, spec: &Value) {
        let object = target.with(spec, metadata);
        self.all.push((target, object));
    }

    /// The objects of our kinds: `own` on one node, `foreign` on the other, `free` on none.
    fn add_ours(&mut self) {
        let (one, two) = (self.one.clone(), self.two.clone());
        for (name, node) in [("own", Some(&one)), ("foreign", Some(&two)), ("free", None)] {
            for (kind, mut spec) in [
                (
                    "Volume",
                    json!({"capacity": "32Mi", "deletionPolicy": "Retain"}),
                ),
                (
                    "VolumeGroup",
                    json!({"selector": {}, "deletionPolicy": "Retain"}),
                ),
                (
                    "Snapshot",
                    json!({"source": {"volumeName": name}, "deletionPolicy": "Retain"}),
                ),
                (
                    "GroupSnapshot",
                    json!({"groupName": name, "deletionPolicy": "Retain"}),
                ),
                (
                    "SnapshotSchedule",
                    json!({"target": {"volumeName": name}, "schedule": "@yearly"}),
                ),
            ] {
                if let Some(node) = node {
                    spec["nodeName"] = json!(node);
                }
                let finalizers = json!({"finalizers": ["drumlin.dev/agent", "example.com/kept"]});
                self.add(self.ours(kind, name), &finalizers, &spec);
            }
        }
        for (name, node) in [(SCHEDULED, &one), (SCHEDULED_FOREIGN, &two)] {
            let metadata = json!({"labels": {"drumlin.dev/schedule": "daily"}});
            let spec = json!({"nodeName": node, "source": {"volumeName": "own"}});
            self.add(self.ours("Snapshot", name), &metadata, &spec);
        }
        for node in [one, two] {
            let storage = Target::of_the_cluster("NodeStorage", &node);
            self.add(storage, &json!({}), &json!({}));
            let delete = json!({"volumeId": format!("{node}/default/any")});
            let call = json!({"nodeName": node, "attempt": 1, "deleteVolume": delete});
            self.add(Self::call(&node), &json!({}), &call);
        }
    }

    /// Volumes of the cluster and claims: of ours, and of another driver.
    fn add_volumes(&mut self) {
        for (name, driver) in [("ours", DRIVER), ("foreign", FOREIGN)] {
            let volume = self.volume_spec(driver, &json!({}));
            self.add(self.volume(name), &json!({}), &volume);
            let metadata = json!({
                "labels": {"app": "pg"},
                "annotations": {PROVISIONER: driver, SELECTED: self.two},
            });
            let claim = json!({
                "storageClassName": driver,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            });
            self.add(self.claim(name), &metadata, &claim);
        }
        // One that an administrator made without saying where it is.
        let anywhere = self.volume_spec(DRIVER, &json!({"nodeAffinity": null}));
        self.add(self.volume("anywhere"), &json!({}), &anywhere);
        let secret = Target::inside(&self.space.name, "Secret", "secret");
        let mut object = secret.with(&Value::Null, &json!({}));
        object["stringData"] = json!({"password": "precious"});
        object.as_object_mut().unwrap().remove("spec");
        self.all.push((secret, object));
    }

    /// Snapshots of claims, and the contents of snapshots: of ours, and of another driver.
    fn add_snapshots(&mut self) {
        for (name, driver) in [("ours", DRIVER), ("foreign", FOREIGN)] {
            let source = json!({"source": {"persistentVolumeClaimName": name}});
            self.add(
                self.snapshot(name),
                &json!({"labels": {"app": "pg"}}),
                &source,
            );
            let named = json!({"name": name, "namespace": self.space.name});
            let spec = json!({
                "deletionPolicy": "Retain",
                "driver": driver,
                "source": {"snapshotHandle": "any"},
                "volumeSnapshotRef": named,
            });
            self.add(self.content(name), &json!({}), &spec);
            let handles =
                json!({"volumeGroupSnapshotHandle": "any", "volumeSnapshotHandles": ["any"]});
            let spec = json!({
                "deletionPolicy": "Retain",
                "driver": driver,
                "source": {"groupSnapshotHandles": handles},
                "volumeGroupSnapshotRef": named,
            });
            self.add(self.group_content(name), &json!({}), &spec);
        }
    }

    /// A volume of the cluster as the provisioner makes it, with changes.
    pub(super) fn volume_spec(&self, driver: &str, changes: &Value) -> Value {
        let mut spec = json!({
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": driver,
            "csi": {"driver": driver, "volumeHandle": format!("{}/default/any", self.one)},
            "nodeAffinity": on(&[&self.one]),
        });
        super::trial::merge(&mut spec, changes);
        spec
    }

    /// An object of one of our kinds, in the tenant's namespace.
    pub(super) fn ours(&self, kind: &'static str, name: &str) -> Target {
        Target::inside(&self.space.name, kind, name)
    }

    /// The call to a node.
    pub(super) fn call(node: &str) -> Target {
        Target::inside(SYSTEM, "NodeCall", &format!("delete-volume-of-{node}"))
    }

    pub(super) fn claim(&self, name: &str) -> Target {
        Target::inside(&self.space.name, "PersistentVolumeClaim", name)
    }

    pub(super) fn snapshot(&self, name: &str) -> Target {
        Target::inside(&self.space.name, "VolumeSnapshot", name)
    }

    pub(super) fn volume(&self, name: &str) -> Target {
        Target::of_the_cluster("PersistentVolume", &self.named(name))
    }

    pub(super) fn content(&self, name: &str) -> Target {
        Target::of_the_cluster("VolumeSnapshotContent", &self.named(name))
    }

    pub(super) fn group_content(&self, name: &str) -> Target {
        Target::of_the_cluster("VolumeGroupSnapshotContent", &self.named(name))
    }

    /// A name of the cluster that no other test has.
    pub(super) fn named(&self, name: &str) -> String {
        format!("{}-{name}", self.space.name)
    }

    /// The versions of all of them: none has changed while these are the same.
    pub(super) async fn versions(&self) -> std::collections::BTreeMap<Target, String> {
        versions(self.cluster, self.all.iter().map(|(target, _)| target)).await
    }
}

/// That a volume is on one of these nodes.
pub(super) fn on(nodes: &[&str]) -> Value {
    let key = "topology.drumlin.dev/node";
    let expression = json!({"key": key, "operator": "In", "values": nodes});
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}})
}
