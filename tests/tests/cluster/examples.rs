//! `docs/src/kubernetes.md`, as it is written: the examples, with pods that write and read.

use std::{fs, path::PathBuf};

use drumlin_tests::{
    cluster::Namespace,
    programs::{printed, program, workspace},
};

use crate::lab::{Lab, Volume, claim, pod_on, until, until_running};

fn example(name: &str) -> PathBuf {
    workspace().join("examples/claims").join(name)
}

fn apply(namespace: &Namespace<'_>, name: &str) {
    namespace.apply(&fs::read_to_string(example(name)).unwrap());
}

/// The loop of the page, which makes claims for the restored volumes.
fn claims_for_restored_volumes(lab: &Lab, namespace: &Namespace<'_>) {
    let page = fs::read_to_string(workspace().join("docs/src/kubernetes.md")).unwrap();
    let from = page.find("for name in data-restored").unwrap();
    let length = page[from..].find("\ndone\n").unwrap() + "\ndone\n".len();
    // The page is about the namespace default, and kubectl takes the one that its context has.
    let script = page[from..from + length].replace(
        "s/NAMESPACE/default/",
        &format!("s/NAMESPACE/{}/", namespace.name),
    );
    let namespaced = format!(
        "kubectl() {{ command kubectl -n {} \"$@\"; }}\nset -e\n{script}",
        namespace.name
    );
    let mut command = program("bash");
    command.args(["-c", &namespaced]).current_dir(workspace());
    command.env("KUBECONFIG", lab.cluster.kubeconfig());
    printed(&command.output().unwrap(), "the loop of the page");
}

/// A pod that reads what another one wrote.
fn reader() -> String {
    "
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data-restored}}
  - {name: log, persistentVolumeClaim: {claimName: log-restored}}
  containers:
  - name: main
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-1
    command: [sleep, infinity]
    volumeMounts: [{name: data, mountPath: /data}, {name: log, mountPath: /log}]
"
    .to_owned()
}

#[test]
fn the_examples_run_to_their_end_and_what_is_deleted_goes() {
    let lab = Lab::installed();
    let namespace = lab.namespace();
    apply(&namespace, "1-database.yaml");
    until_running(&namespace, "pg");
    let lines = |pod: &str, file: &str| -> usize {
        let count = format!("wc -l < {file}");
        let words = ["exec", pod, "--", "sh", "-c", &count];
        namespace.kubectl(&words).trim().parse().unwrap()
    };
    until("the database writes", || lines("pg", "/log/now") > 2);
    apply(&namespace, "2-group.yaml");
    namespace.until_ready("dvg/pg");
    namespace.until_ready("dgsnap/pg-before-upgrade");
    let later = lines("pg", "/log/now");
    apply(&namespace, "3-restore.yaml");
    for object in ["dv/data-restored", "dv/log-restored", "dvg/pg-restored"] {
        namespace.until_ready(object);
    }
    claims_for_restored_volumes(lab, &namespace);
    namespace.apply(&reader());
    until_running(&namespace, "reader");
    let (data, log) = (lines("reader", "/data/now"), lines("reader", "/log/now"));
    // Each line goes to both files, and tee writes to its output, the log, first: at no moment do they differ by more than the
    // one that is on its way.
    assert!(log == data || log == data + 1, "{data} and {log}");
    assert!(data > 2 && log <= later, "{data}, {log} of {later}");

    let volumes = lab.volumes(&namespace);
    assert_eq!(volumes.len(), 4);
    // In an order that no user is told: all of it at once.
    for objects in ["pod,pvc", "dgsnap,dvg,dv"] {
        namespace.kubectl(&[
            "delete",
            "--wait=false",
            "--grace-period=1",
            objects,
            "--all",
        ]);
    }
    for kind in ["pod", "pvc", "dgsnap", "dvg", "dv"] {
        until("the objects are gone", || {
            namespace.kubectl(&["get", kind, "-o", "name"]).is_empty()
        });
    }
    // A restored volume is an object's, which keeps its bytes (`deletionPolicy`) as its PersistentVolume does.
    let is_restored = |volume: &&Volume| volume.name.contains("-restored");
    let (restored, own): (Vec<_>, Vec<_>) = volumes.iter().partition(is_restored);
    assert_eq!((restored.len(), own.len()), (2, 2));
    for volume in own {
        until("the image is deleted", || !lab.has(volume));
    }
    for volume in restored {
        assert!(lab.has(volume), "{volume:?}");
        lab.cluster.kubectl(&["delete", "pv", &volume.name]);
    }
}

#[test]
fn a_raw_block_volume_keeps_what_a_pod_wrote_for_the_next_one() {
    let lab = Lab::installed();
    let namespace = lab.namespace();
    let raw = claim("raw").replace("spec:", "spec:\n  volumeMode: Block");
    namespace.apply(&raw);
    let pod = |name: &str, script: &str| {
        let pod = pod_on("raw", "");
        let pod = pod.replacen("{name: raw}", &format!("{{name: {name}}}"), 1);
        let pod = pod.replace(
            "volumeMounts: [{name: data, mountPath: /data}]",
            "volumeDevices: [{name: data, devicePath: /dev/raw}]",
        );
        namespace.apply(&format!(
            "{pod}\n    command: [sh, -c, {script:?}]\n  restartPolicy: Never\n"
        ));
        let phase = "jsonpath={.status.phase}";
        until("the pod ends well", || {
            let phase = namespace.kubectl(&["get", "pod", name, "-o", phase]);
            assert_ne!(phase, "Failed", "{}", namespace.kubectl(&["logs", name]));
            phase == "Succeeded"
        });
        let said = namespace.kubectl(&["logs", name]);
        namespace.kubectl(&["delete", "pod", name]);
        said
    };
    pod(
        "first",
        "printf precious | dd of=/dev/raw conv=fsync seek=9 bs=4096",
    );
    let read = pod(
        "second",
        "dd if=/dev/raw skip=9 bs=4096 count=1 2> /dev/null | head -c 8",
    );
    assert_eq!(read, "precious");
    lab.delete(&namespace, &["pvc", "raw"]);
}
