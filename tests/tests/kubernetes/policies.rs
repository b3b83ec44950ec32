//! Whether the policies are in force is tried, and said.

use std::process::Output;

use drumlin_tests::{
    agent::eventually, cluster::Cluster, daemon::Daemon, programs::drumlin, storage::Scratch,
};

use crate::{
    node::{manifest, volume},
    rbac::{SYSTEM, install, persistent, said},
};

/// Those that restrict agents and the controller.
const POLICIES: [&str; 5] = [
    "drumlin-agent-own-node",
    "drumlin-controller-own-volumes",
    "drumlin-controller-own-fields",
    "drumlin-controller-tenants-objects",
    "drumlin-controller-own-contents",
];
const PROBE: &str = "drumlin-policy-probe";

/// What each of them refuses to the controller.
fn refused_by(policy: &str) -> String {
    match policy {
        "drumlin-agent-own-node" => volume(PROBE, "capacity: 1Gi"),
        "drumlin-controller-own-volumes" => persistent(PROBE, "csi.drumlin.dev", "any"),
        "drumlin-controller-own-fields" => manifest("VolumeGroup", PROBE, "selector: {}"),
        "drumlin-controller-tenants-objects" => format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {PROBE}}}\nspec:\n  accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: 1Gi}}}}\n"
        ),
        _ => format!(
            "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotContent\nmetadata: {{name: {PROBE}}}\nspec:\n  deletionPolicy: Retain\n  driver: csi.drumlin.dev\n  source: {{snapshotHandle: any}}\n  volumeSnapshotRef: {{namespace: default, name: any}}\n"
        ),
    }
}

/// Has the controller's account try what a policy refuses; nothing comes of it.
fn probe(controller: &Cluster, policy: &str) -> Output {
    let dry = ["--server-side", "--dry-run=server", "-f", "-"];
    let words = [&["-n", SYSTEM, "apply"][..], &dry].concat();
    controller.try_with_input(&words, &refused_by(policy))
}

/// Waits until all of them are in force: what is applied is so a moment later.
pub(crate) async fn are_in_force(controller: &Cluster) {
    for policy in POLICIES {
        let answer = || said(&probe(controller, policy));
        eventually(answer, |said| {
            said.contains("this policy is in force") && said.contains(policy)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_says_when_a_policy_is_not_in_force() {
    let (cluster, scratch) = (Cluster::own(), Scratch::new());
    install(&cluster);
    let account = cluster.as_account(&scratch, "drumlin-controller", None);
    let arguments = ["controller", "--namespace", SYSTEM, "--identity", "one"];
    let arguments = arguments.iter().map(|word| (*word).to_owned());
    let arguments: Vec<String> = arguments.chain(account.arguments()).collect();
    are_in_force(&account).await;
    let mut controller = Daemon::start(drumlin(), &arguments, &[]);
    let says = |controller: &Daemon, what: &str| {
        let log = controller.log();
        let lines = log.lines().filter(|line| line.contains(what));
        lines
            .filter(|line| POLICIES.iter().any(|policy| line.contains(policy)))
            .count()
    };
    eventually(
        || says(&controller, "policy is in force"),
        |said| *said == POLICIES.len(),
    )
    .await;
    // What it tries it may do by that name only, and nothing comes of it.
    let create = |name: &str| {
        let text = volume(name, "capacity: 1Gi");
        account.try_with_input(
            &["-n", "default", "apply", "--server-side", "-f", "-"],
            &text,
        )
    };
    assert!(said(&create(PROBE)).contains("this policy is in force"));
    assert!(said(&create("another")).contains("cannot create"));
    controller.stop();

    for policy in POLICIES {
        cluster.kubectl(&["delete", "validatingadmissionpolicybinding", policy]);
        let allowed = || probe(&account, policy).status.success();
        eventually(allowed, |allowed| *allowed).await;
    }
    controller.restart();
    eventually(
        || says(&controller, "policy is not in force"),
        |said| *said == POLICIES.len(),
    )
    .await;
    let events = || {
        let words = [
            "-n",
            SYSTEM,
            "get",
            "events",
            "-o",
            "jsonpath={.items[*].reason}",
        ];
        cluster.kubectl(&words).matches("PolicyNotInForce").count()
    };
    eventually(events, |told| *told == POLICIES.len()).await;
    let left = cluster.kubectl(&[
        "get",
        "dv,dvg,pvc,pv,volumesnapshotcontent",
        "-A",
        "-o",
        "name",
    ]);
    assert_eq!(left.trim(), "");
}
