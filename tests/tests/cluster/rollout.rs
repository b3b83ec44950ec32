//! Another version of everything is rolled out while pods write and claims come and go.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use drumlin_tests::storage::Scratch;

use crate::lab::{Lab, Writer, manifests, until};

/// Ends what another thread repeats; also when the test fails, or that thread would be waited for without end.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn another_version_is_rolled_out_under_load_and_disturbs_no_pod() {
    let lab = Lab::installed();
    let namespace = lab.namespace();
    let start = |node: &String| Writer::start(&namespace, &format!("on-{node}"), node);
    let writers: Vec<_> = lab.nodes.iter().map(start).collect();
    let agents = || -> Vec<String> { lab.nodes.iter().map(|node| lab.agent_of(node)).collect() };
    let before = agents();

    let scratch = Scratch::new();
    let overlay = scratch.directory("next");
    let base = overlay.join("base");
    // Kustomize takes nothing from outside of where it begins but by a path that is relative.
    std::os::unix::fs::symlink(manifests("base"), &base).unwrap();
    let text = "resources: [base]\nimages: [{name: drumlin, newTag: next}]\n";
    fs::write(overlay.join("kustomization.yaml"), text).unwrap();
    let roll_out = |path: &str| {
        let words = ["apply", "--server-side", "--force-conflicts", "-k", path];
        lab.cluster.kubectl(&words);
        lab.until_rolled_out();
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut served = 0;
            while !is_over.load(Ordering::Relaxed) || served == 0 {
                let node = &lab.nodes[served % lab.nodes.len()];
                let name = format!("load-{served}");
                Writer::start(&namespace, &name, node);
                namespace.kubectl(&["delete", "pod,pvc", &name]);
                served += 1;
            }
        });
        let ends = Ends(&is_over);
        roll_out(&overlay.to_string_lossy());
        let image = "jsonpath={.items[*].spec.containers[*].image}";
        let own = ["-n", "drumlin-system", "get", "pods", "-o", image];
        // A rollout is complete while pods of the old version are still terminating.
        until("every pod is of the new version", || {
            let images = lab.cluster.kubectl(&own);
            images.contains("drumlin:next") && !images.contains("drumlin:0.1.0")
        });
        for (old, new) in before.iter().zip(agents()) {
            assert_ne!(*old, new);
        }
        drop(ends);
        load.join().unwrap();
    });
    for writer in &writers {
        writer.is_undisturbed();
    }
    roll_out(&manifests("base"));
    for writer in &writers {
        writer.is_undisturbed();
    }
    lab.delete(&namespace, &["pod,pvc", "--all"]);
}

/// The base with another configuration of the agents.
const OTHER_CLASSES: &str = "
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [base]
configMapGenerator:
- name: drumlin-agent
  namespace: drumlin-system
  behavior: replace
  files: [agent-config.yaml]
  options: {disableNameSuffixHash: true}
";

#[test]
fn a_class_that_is_added_is_served_without_a_rollout() {
    let lab = Lab::installed();
    let agents = || -> Vec<String> { lab.nodes.iter().map(|node| lab.agent_of(node)).collect() };
    let before = agents();
    let scratch = Scratch::new();
    let directory = scratch.path();
    let class = |name: &str, more: &str, path: &str| {
        format!("- {{name: {name}{more}, directory: {{path: /var/lib/drumlin/{path}}}}}\n")
    };
    // The one that there is without any, and another one.
    let classes = class("default", ", default: true", "images") + &class("more", "", "more");
    let config = format!("log: {{format: json}}\nclasses:\n{classes}");
    fs::write(directory.join("agent-config.yaml"), config).unwrap();
    fs::write(directory.join("kustomization.yaml"), OTHER_CLASSES).unwrap();
    std::os::unix::fs::symlink(manifests("base"), directory.join("base")).unwrap();
    lab.install_from(directory);
    let names = "jsonpath={.status.classes[*].name}";
    for node in &lab.nodes {
        until("the node has the class", || {
            let words = ["get", "nodestorage", node, "-o", names];
            lab.cluster.kubectl(&words) == "default more"
        });
    }
    assert_eq!(agents(), before);
    lab.install("base");
    for node in &lab.nodes {
        until("the node has the class no more", || {
            let words = ["get", "nodestorage", node, "-o", names];
            lab.cluster.kubectl(&words) == "default"
        });
    }
    assert_eq!(agents(), before);
}
