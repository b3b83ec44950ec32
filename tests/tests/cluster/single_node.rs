//! A cluster of one node: its overlay, and the removal that the documents describe.

use std::fs;

use drumlin_tests::programs::{printed, program, workspace};

use crate::lab::{Lab, Writer, until};

/// What a section of the page has a user run, with another directory of manifests.
fn commands_of(section: &str) -> Vec<String> {
    let page = fs::read_to_string(workspace().join("docs/src/kubernetes.md")).unwrap();
    let (_, from) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let section = from.split("\n## ").next().unwrap();
    let blocks = section.split("```sh\n").skip(1);
    let commands = blocks.flat_map(|block| block.split("```").next().unwrap().lines());
    let commands = commands.map(|line| {
        line.trim()
            .replace("manifests/base", "manifests/overlays/single-node")
    });
    commands.filter(|line| !line.is_empty()).collect()
}

#[test]
fn all_is_removed_as_the_page_says_and_every_byte_is_kept() {
    let lab = Lab::started();
    lab.install("overlays/single-node");
    let node = lab.nodes[0].as_str();
    let namespace = lab.namespace();
    let writer = Writer::start(&namespace, "writer", node);
    namespace.apply(
        "{apiVersion: drumlin.dev/v1alpha1, kind: Volume, metadata: {name: own}, spec: {nodeName: node-a, capacity: 64Mi}}",
    );
    namespace.until_ready("dv/own");
    let images = || {
        let found = lab.node(
            node,
            &["exec", "find", "/var/lib/drumlin", "-name", "image"],
        );
        found.lines().count()
    };
    assert_eq!(images(), 2);

    for command in commands_of("Removal") {
        let mut run = program("bash");
        run.args(["-ec", &command]).current_dir(workspace());
        run.env("KUBECONFIG", lab.cluster.kubeconfig());
        printed(&run.output().unwrap(), &command);
    }
    until("nothing of ours runs", || {
        let words = ["get", "namespace", "drumlin-system", "--ignore-not-found"];
        lab.cluster.kubectl(&words).is_empty()
    });
    let kinds = lab.cluster.kubectl(&[
        "get",
        "crd,csidriver,storageclass,clusterrole,validatingadmissionpolicy",
        "-o",
        "name",
    ]);
    assert!(!kinds.contains("drumlin"), "{kinds}");
    until("kubelet knows the driver no more", || {
        !lab.is_registered(node)
    });
    // A pod that has mounted a volume writes on.
    writer.is_undisturbed();
    assert_eq!(images(), 2);

    // Installed anew, all of it is there.
    lab.install("overlays/single-node");
    writer.is_undisturbed();
    lab.delete(&namespace, &["pod,pvc", "writer"]);
    assert_eq!(images(), 1);
}
