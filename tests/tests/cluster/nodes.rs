//! Nodes: where volumes are, and what becomes of them when a node is drained or loses its power.

use drumlin_tests::cluster::Namespace;

use crate::lab::{Lab, Writer, claim, pod_on, until, writer};

#[test]
fn volumes_are_made_where_their_pods_run() {
    let lab = Lab::installed();
    let namespace = lab.namespace();
    for node in &lab.nodes {
        Writer::start(&namespace, &format!("on-{node}"), node);
    }
    let mut volumes = lab.volumes(&namespace);
    volumes.sort_by(|one, other| one.node.cmp(&other.node));
    let nodes: Vec<_> = volumes.iter().map(|volume| &volume.node).collect();
    assert_eq!(nodes, lab.nodes.iter().collect::<Vec<_>>());
    for volume in &volumes {
        let affinity = &volume.affinity;
        assert!(affinity.contains(&volume.node), "{affinity}");
    }
    // A class of attributes reaches each node, and the volume there is protected then.
    let attributes = |class: &str| {
        for node in &lab.nodes {
            let claim = format!("on-{node}");
            let change = format!(r#"{{"spec": {{"volumeAttributesClassName": "{class}"}}}}"#);
            namespace.kubectl(&["patch", "pvc", &claim, "--type=merge", "-p", &change]);
            let current = "jsonpath={.status.currentVolumeAttributesClassName}";
            until("the claim has its attributes", || {
                namespace.kubectl(&["get", "pvc", &claim, "-o", current]) == class
            });
        }
    };
    attributes("drumlin-protected");
    attributes("drumlin-unprotected");
    lab.delete(&namespace, &["pod,pvc", "--all"]);
}

/// A class of volumes of one node that are bound before there is a pod.
struct BoundEarly<'a> {
    namespace: &'a Namespace<'a>,
    name: &'a str,
}

impl<'a> BoundEarly<'a> {
    fn of(namespace: &'a Namespace<'a>, name: &'a str, node: &str) -> Self {
        namespace.apply(&format!(
            "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: {name}}}
provisioner: csi.drumlin.dev
volumeBindingMode: Immediate
allowedTopologies:
- matchLabelExpressions: [{{key: topology.drumlin.dev/node, values: [{node}]}}]
"
        ));
        Self { namespace, name }
    }

    /// Makes a claim, and waits until it is bound.
    fn bind(&self, name: &str) {
        let class = format!("Name: {}\n", self.name);
        self.namespace
            .apply(&claim(name).replacen("Name: drumlin\n", &class, 1));
        let phase = "jsonpath={.status.phase}";
        until("the claim is bound without a pod", || {
            self.namespace.kubectl(&["get", "pvc", name, "-o", phase]) == "Bound"
        });
    }
}

impl Drop for BoundEarly<'_> {
    fn drop(&mut self) {
        let words = ["delete", "storageclass", self.name];
        self.namespace.cluster.try_kubectl(&words);
    }
}

#[test]
fn pods_follow_their_copies_to_the_node_of_the_source_and_their_class_to_its_nodes() {
    let lab = Lab::installed();
    let namespace = lab.namespace();
    let [first, second] = [&lab.nodes[0], &lab.nodes[1]];
    let source = Writer::start(&namespace, "source", first);
    let runs_on = |pod: &str| {
        let node = "jsonpath={.spec.nodeName}";
        namespace.kubectl(&["get", "pod", pod, "-o", node])
    };
    // The scheduler has it on the other node first, where nothing can be copied to.
    let preferred = format!(
        "affinity: {{nodeAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: \
         [{{weight: 100, preference: {{matchExpressions: \
         [{{key: kubernetes.io/hostname, operator: In, values: [{second}]}}]}}}}]}}}}\n  volumes:"
    );
    source.shell("echo precious > /data/marker && sync /data/marker");
    let from_source = "  dataSource: {kind: PersistentVolumeClaim, name: source}\n  accessModes:";
    let copy = writer("copy", "")
        .replacen("volumes:", &preferred, 1)
        .replacen("  accessModes:", from_source, 1);
    let copy = Writer::start_with(&namespace, "copy", &copy);
    assert_eq!(&runs_on("copy"), first);
    assert_eq!(copy.shell("cat /data/marker").trim(), "precious");

    // Beside a volume that is new, a copy is bound before the pod has a node.
    let restored = claim("restored")
        .replacen("Name: drumlin\n", "Name: drumlin-restore\n", 1)
        .replacen("  accessModes:", from_source, 1);
    let both = preferred.replacen(
        "volumes:",
        "volumes:\n  - {name: restored, persistentVolumeClaim: {claimName: restored}}",
        1,
    );
    let both = writer("fresh", "").replacen("volumes:", &both, 1);
    Writer::start_with(&namespace, "fresh", &(restored + &both));
    assert_eq!(&runs_on("fresh"), first);

    let class = BoundEarly::of(&namespace, "early", second);
    class.bind("there");
    let there = writer("there", "");
    let (_, pod) = there.split_once("---\n").unwrap();
    Writer::start_with(&namespace, "there", pod);
    assert_eq!(&runs_on("there"), second);
    lab.delete(&namespace, &["pod,pvc", "--all"]);
}

#[test]
fn a_node_that_loses_its_power_has_all_that_pods_were_told_is_written() {
    let lab = Lab::installed();
    let namespace = lab.namespace();
    let node = lab.nodes[0].as_str();
    let writer = Writer::start(&namespace, "writer", node);
    let others = lab.nodes[1..].iter().map(|other| {
        let name = format!("on-{other}");
        Writer::start(&namespace, &name, other)
    });
    let others: Vec<_> = others.collect();
    writer.outlives_a_power_cut(lab, node);
    for other in &others {
        other.is_undisturbed();
    }
    lab.delete(&namespace, &["pod,pvc", "--all"]);
}

#[test]
fn a_drained_node_has_its_pods_back_with_their_data() {
    let lab = Lab::installed();
    let namespace = lab.namespace();
    let node = lab.nodes[0].as_str();
    let deployment = {
        let pod = pod_on("app", "");
        let spec = pod.split_once("\nspec:").unwrap().1;
        let spec = spec.replace('\n', "\n    ");
        format!(
            "{}
apiVersion: apps/v1
kind: Deployment
metadata: {{name: app}}
spec:
  strategy: {{type: Recreate}}
  selector: {{matchLabels: {{app: app}}}}
  template:
    metadata: {{labels: {{app: app}}}}
    spec:{spec}
        command: [sh, -c, \"date >> /data/starts; sync /data/starts; sleep infinity\"]
",
            claim("app")
        )
    };
    // The others take no pods, so that the volume is made on this node.
    for other in &lab.nodes[1..] {
        lab.cluster.kubectl(&["cordon", other]);
    }
    namespace.apply(&deployment);
    let rolled_out = ["rollout", "status", "deployment/app", "--timeout=180s"];
    namespace.kubectl(&rolled_out);
    for other in &lab.nodes[1..] {
        lab.cluster.kubectl(&["uncordon", other]);
    }
    let starts = || {
        let words = ["exec", "deployment/app", "--", "wc", "-l", "/data/starts"];
        namespace.kubectl(&words)
    };
    assert!(starts().starts_with('1'));
    let agent = lab.agent_of(node);
    let drain = [
        "drain",
        node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        // What a test that has failed leaves for a moment has no controller.
        "--force",
    ];
    lab.cluster.kubectl(&drain);
    // Nowhere else is the volume.
    let pending = "jsonpath={.items[*].status.phase}";
    until("the pod waits for its node", || {
        namespace.kubectl(&["get", "pods", "-o", pending]) == "Pending"
    });
    until("the volume is unmounted", || {
        let mounted = "grep -c '/var/lib/kubelet/pods/.*csi' /proc/self/mountinfo || true";
        lab.node(node, &["exec", "sh", "-c", mounted]).trim() == "0"
    });
    assert_eq!(
        lab.agent_of(node),
        agent,
        "the agent stays on a drained node"
    );
    lab.cluster.kubectl(&["uncordon", node]);
    namespace.kubectl(&rolled_out);
    assert!(starts().starts_with('2'));
    lab.delete(&namespace, &["deployment,pvc", "app"]);
    lab.until_rolled_out();
}

#[test]
fn a_node_that_is_given_up_lets_go_of_its_volumes_and_is_used_again_when_it_returns() {
    let lab = Lab::installed();
    let namespace = lab.namespace();
    let node = lab.nodes[1].as_str();
    let writer = Writer::start(&namespace, "writer", node);
    writer.goes_on();
    let volume = format!("pv/{}", lab.volumes(&namespace)[0].name);
    let without_power = lab.without_power(node);
    lab.cluster.kubectl(&["delete", "node", node]);
    // Kubernetes does that itself, a minute later. A controller may be there, too: after a drain of the other node, both are.
    let at_once = ["--force", "--grace-period=0"];
    namespace.kubectl(&[&["delete", "pod", "writer"], &at_once[..]].concat());
    let there = format!("--field-selector=spec.nodeName={node}");
    let own = ["-n", "drumlin-system", "delete", "pod", &there];
    lab.cluster.kubectl(&[&own[..], &at_once].concat());
    namespace.kubectl(&["delete", "pvc", "writer"]);
    // As the page says: by itself nothing is given up.
    let told = || {
        let about = format!("involvedObject.name={}", &volume[3..]);
        let words = ["get", "events", "-A", "--field-selector", &about];
        lab.cluster
            .kubectl(&[&words[..], &["-o", "jsonpath={.items[*].message}"]].concat())
    };
    until("the deletion is refused", || {
        told().contains("drumlin.dev/abandon")
    });
    assert!(!lab.volumes(&namespace).is_empty());
    let given_up = format!("drumlin.dev/abandon={node}");
    lab.cluster
        .kubectl(&["annotate", "nodestorage", node, &given_up]);
    until("the PersistentVolume is deleted", || {
        lab.volumes(&namespace).is_empty()
    });

    drop(without_power);
    until("kubelet registers the node", || {
        let found = lab.cluster.try_kubectl(&["get", "node", node]);
        found.status.success()
    });
    lab.until_kubelet_answers(node);
    lab.until_rolled_out();
    lab.cluster
        .kubectl(&["annotate", "nodestorage", node, "drumlin.dev/abandon-"]);
    // The scheduler knows the room of the node a minute or two later; a claim that is bound before does not wait for it.
    let class = BoundEarly::of(&namespace, "returned", node);
    class.bind("again");
    lab.delete(&namespace, &["pvc", "again"]);
}
