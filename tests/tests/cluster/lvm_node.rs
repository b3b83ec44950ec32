//! `examples/lvm-cluster`: a node with a volume group, in a machine whose kernel has device-mapper, beside one without.

use drumlin_tests::{programs::workspace, storage::Scratch};

use crate::lab::{Lab, Writer, until, writer};

const NODE: &str = "node-lvm";

/// The names of the logical volumes on the node, as the agent's LVM tells them.
fn logical_volumes(lab: &Lab) -> Vec<String> {
    let agent = lab.agent_of(NODE);
    let list = ["lvs", "--noheadings", "-o", "lv_name", "drumlin"];
    let words = [&["-n", "drumlin-system", "exec", &agent, "--"], &list[..]].concat();
    let listed = lab.cluster.kubectl(&words);
    listed.split_whitespace().map(str::to_owned).collect()
}

/// The example, with the node that the label belongs to.
fn installed() -> Lab {
    let lab = Lab::started();
    lab.cluster
        .kubectl(&["label", "--overwrite", "node", NODE, "drumlin.dev/lvm=true"]);
    lab.install_from(&workspace().join("examples/lvm-cluster"));
    lab
}

/// A claim and a pod of the thin class, from those of the default class.
fn on_thin(manifests: &str) -> String {
    manifests.replace(
        "storageClassName: drumlin\n",
        "storageClassName: drumlin-thin\n",
    )
}

#[test]
fn thin_volumes_grow_under_pods_that_write_and_are_copied_as_one_moment() {
    let lab = installed();
    let namespace = lab.namespace();
    let data = Writer::start_with(&namespace, "data", &on_thin(&writer("data", NODE)));
    let log = Writer::start_with(&namespace, "log", &on_thin(&writer("log", NODE)));
    let before = logical_volumes(&lab);

    let grow = r#"{"spec": {"resources": {"requests": {"storage": "192Mi"}}}}"#;
    namespace.kubectl(&["patch", "pvc", "data", "-p", grow]);
    let size = || {
        let blocks = data.shell("stat -f -c '%b %S' /data");
        let numbers: Vec<u64> = blocks
            .split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect();
        (numbers[0] * numbers[1]) >> 20
    };
    until("the file system has grown", || size() > 128);
    let capacity = "jsonpath={.status.capacity.storage}";
    until("the claim says so", || {
        namespace.kubectl(&["get", "pvc", "data", "-o", capacity]) == "192Mi"
    });
    data.is_undisturbed();

    let group = "
apiVersion: drumlin.dev/v1alpha1
kind: VolumeGroup
metadata: {name: both}
spec: {members: [{kind: PersistentVolumeClaim, name: data}, {kind: PersistentVolumeClaim, name: log}]}
---
apiVersion: drumlin.dev/v1alpha1
kind: GroupSnapshot
metadata: {name: moment}
spec: {groupName: both}
";
    namespace.apply(group);
    namespace.until_ready("dgsnap/moment");
    assert_eq!(logical_volumes(&lab).len(), before.len() + 2);
    data.is_undisturbed();
    log.is_undisturbed();

    // Another agent finds all of it on the disks.
    let old = lab.agent_of(NODE);
    lab.cluster
        .kubectl(&["-n", "drumlin-system", "delete", &old]);
    lab.until_rolled_out();
    data.is_undisturbed();
    namespace.kubectl(&["delete", "dgsnap,dvg", "--all"]);
    namespace.kubectl(&["delete", "pod,pvc", "data", "log"]);
    until("the logical volumes are deleted", || {
        logical_volumes(&lab).len() == before.len() - 2
    });
}

#[test]
fn a_node_without_the_label_has_no_such_class_and_is_ready() {
    let lab = installed();
    let classes = |node: &str| {
        let names = "jsonpath={.status.classes[*].name}";
        let words = ["get", "nodestorage", node, "-o", names];
        lab.cluster.kubectl(&words)
    };
    until("both say what they have", || {
        classes("node-a") == "default" && classes(NODE) == "default thin"
    });
    // A pod that may run on either goes where its class is.
    let namespace = lab.namespace();
    Writer::start_with(&namespace, "anywhere", &on_thin(&writer("anywhere", "")));
    let node = "jsonpath={.spec.nodeName}";
    assert_eq!(
        namespace.kubectl(&["get", "pod", "anywhere", "-o", node]),
        NODE
    );
}

/// A kustomization as the page has it, for the nodes with LVM.
const COMPONENT: &str = "
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [manifests/base]
components: [manifests/components/lvm]
patches:
- patch: |
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: drumlin-agent, namespace: drumlin-system}
    spec: {template: {spec: {nodeSelector: {drumlin.dev/lvm: \"true\"}}}}
";

#[test]
fn the_component_alone_gives_thin_volumes_to_all_that_name_no_class() {
    let lab = installed();
    let scratch = Scratch::new();
    let directory = scratch.path();
    std::os::unix::fs::symlink(workspace().join("manifests"), directory.join("manifests")).unwrap();
    std::fs::write(directory.join("kustomization.yaml"), COMPONENT).unwrap();
    let path = directory.to_string_lossy();
    lab.cluster
        .kubectl(&["apply", "--server-side", "-k", &path]);
    lab.until_rolled_out();
    let namespace = lab.namespace();
    // What is of other tests may go meanwhile.
    let before = logical_volumes(&lab);
    let data = Writer::start(&namespace, "data", NODE);
    let mut own = logical_volumes(&lab);
    // The pool is made with the first volume, and stays.
    own.retain(|name| name != "drumlin-pool" && !before.contains(name));
    assert_eq!(own.len(), 1, "{own:?} {before:?}");
    data.is_undisturbed();
    namespace.kubectl(&["delete", "pod,pvc", "data"]);
    until("the logical volume is deleted", || {
        !logical_volumes(&lab).contains(&own[0])
    });
}

#[test]
fn a_node_that_loses_its_power_has_its_thin_volumes_back() {
    let lab = installed();
    let namespace = lab.namespace();
    let data = Writer::start_with(&namespace, "data", &on_thin(&writer("data", NODE)));
    data.outlives_a_power_cut(&lab, NODE);
    namespace.kubectl(&["delete", "pod,pvc", "data"]);
}
