//! Whatever of a node is started anew while pods write: no pod is disturbed, and claims are served afterwards.

use crate::lab::{Lab, Writer, until};

/// What comes after a restart: a claim of a new pod is served, and both are deleted again.
fn a_claim_is_served(lab: &Lab, node: &str) {
    let namespace = lab.namespace();
    Writer::start(&namespace, "later", node);
    lab.delete(&namespace, &["pod,pvc", "later"]);
}

/// Restarts something of a node while a pod of it writes.
fn undisturbed_by(restart: impl FnOnce(&Lab, &str)) {
    let lab = Lab::installed();
    let namespace = lab.namespace();
    let node = lab.nodes[0].as_str();
    let writer = Writer::start(&namespace, "writer", node);
    restart(lab, node);
    lab.until_kubelet_answers(node);
    writer.is_undisturbed();
    a_claim_is_served(lab, node);
    lab.until_rolled_out();
    writer.is_undisturbed();
    lab.delete(&namespace, &["pod,pvc", "writer"]);
}

#[test]
fn a_restart_of_kubelet_disturbs_no_pod() {
    undisturbed_by(|lab, node| {
        lab.node(node, &["restart", "kubelet"]);
    });
}

#[test]
fn a_restart_of_containerd_disturbs_no_pod() {
    undisturbed_by(|lab, node| {
        lab.node(node, &["restart", "containerd"]);
    });
}

#[test]
fn another_pod_of_the_agent_disturbs_no_pod() {
    undisturbed_by(|lab, node| {
        let old = lab.agent_of(node);
        lab.cluster
            .kubectl(&["-n", "drumlin-system", "delete", &old]);
        lab.until_rolled_out();
        assert_ne!(lab.agent_of(node), old);
    });
}

#[test]
fn an_agent_that_is_killed_disturbs_no_pod() {
    undisturbed_by(|lab, node| {
        let started = "jsonpath={.status.containerStatuses[?(@.name==\"agent\")].restartCount}";
        let pod = lab.agent_of(node);
        let restarts = || {
            let words = ["-n", "drumlin-system", "get", &pod, "-o", started];
            lab.cluster.kubectl(&words).parse::<u32>().unwrap()
        };
        let before = restarts();
        // The controller's, too, where it is on this node.
        let kill = "kill -KILL $(pidof drumlin)";
        lab.node(node, &["exec", "sh", "-c", kill]);
        until("kubelet starts it again", || restarts() > before);
    });
}

#[test]
fn a_pod_that_is_deleted_while_kubelet_is_away_is_cleaned_up_afterwards() {
    let lab = Lab::installed();
    let namespace = lab.namespace();
    let node = lab.nodes[0].as_str();
    Writer::start(&namespace, "writer", node);
    let volumes = lab.volumes(&namespace);
    assert_eq!(volumes.len(), 1);
    lab.node(node, &["halt", "kubelet"]);
    // Without a grace period, the pod is deleted at once.
    let words = ["delete", "--grace-period=0", "--force", "pod", "writer"];
    namespace.kubectl(&words);
    namespace.kubectl(&["delete", "--wait=false", "pvc", "writer"]);
    lab.node(node, &["resume", "kubelet"]);
    lab.until_kubelet_answers(node);
    until("the PersistentVolume is deleted", || {
        lab.volumes(&namespace).is_empty()
    });
    for volume in &volumes {
        until("the image is deleted", || !lab.has(volume));
    }
}
