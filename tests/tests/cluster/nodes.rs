//! Nodes: where volumes are, and what becomes of them when a node is drained or loses its power.

use crate::lab::{Lab, Writer, claim, pod_on, until};

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
