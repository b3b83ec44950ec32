//! What the pods of ours ask of the nodes that they run on, judged by the pod security standards.

use std::process::Output;

use drumlin_tests::cluster::Cluster;
use serde_json::json;

use crate::{kustomize::Rendered, rbac::said};

/// Has the server judge a pod of a workload by a standard.
fn judged(cluster: &Cluster, rendered: &Rendered, workload: &str, standard: &str) -> Output {
    let space = cluster.namespace();
    let label = format!("pod-security.kubernetes.io/enforce={standard}");
    space.kubectl(&["label", "namespace", &space.name, &label]);
    let mut workloads = rendered.workloads();
    let found = workloads.find(|(found, _)| found["metadata"]["name"] == workload);
    let mut pod = found.unwrap().1.clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("one");
    // Priority classes of the system need a quota elsewhere.
    pod["spec"]
        .as_object_mut()
        .unwrap()
        .remove("priorityClassName");
    let create = ["-n", &*space.name, "create", "--dry-run=server", "-f", "-"];
    cluster.try_with_input(&create, &pod.to_string())
}

#[test]
fn the_controllers_pods_are_restricted_and_those_of_agents_are_not() {
    let cluster = Cluster::of_the_lab();
    let rendered = Rendered::of(&cluster, "base", &["upstream-snapshots"]);
    let controller = judged(&cluster, &rendered, "drumlin-controller", "restricted");
    assert!(controller.status.success(), "{controller:?}");
    let agent = judged(&cluster, &rendered, "drumlin-agent", "privileged");
    assert!(agent.status.success(), "{agent:?}");
    for standard in ["baseline", "restricted"] {
        let agent = said(&judged(&cluster, &rendered, "drumlin-agent", standard));
        assert!(
            agent.contains("violates PodSecurity"),
            "{standard}: {agent}"
        );
    }
}

/// Each of our pods is one that the network policy is about.
#[test]
fn the_network_policy_is_about_all_our_pods() {
    let cluster = Cluster::of_the_lab();
    let rendered = Rendered::of(&cluster, "base", &["network-policy"]);
    let mut policies = rendered.objects.iter();
    let policy = policies.find(|object| object["kind"] == "NetworkPolicy");
    let policy = policy.unwrap();
    let selected = policy["spec"]["podSelector"]["matchLabels"]
        .as_object()
        .unwrap();
    assert!(!selected.is_empty());
    let mut pods = 0;
    for (workload, template) in rendered.workloads() {
        let space = &workload["metadata"]["namespace"];
        assert_eq!(space, &policy["metadata"]["namespace"], "{workload}");
        for (label, value) in selected {
            assert_eq!(&template["metadata"]["labels"][label], value, "{workload}");
        }
        pods += 1;
    }
    assert_eq!(pods, 2);
}
