//! Whether the policies are in force is tried, and said.

use drumlin_tests::{
    agent::eventually, cluster::Cluster, daemon::Daemon, programs::drumlin, storage::Scratch,
};

use crate::{
    node::volume,
    rbac::{SYSTEM, persistent, said},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_says_when_a_policy_is_not_in_force() {
    let (cluster, scratch) = (Cluster::own(), Scratch::new());
    cluster.install();
    let account = cluster.as_account(&scratch, "drumlin-controller", None);
    let arguments = ["controller", "--namespace", SYSTEM, "--identity", "one"];
    let arguments = arguments.iter().map(|word| (*word).to_owned());
    let arguments: Vec<String> = arguments.chain(account.arguments()).collect();
    let policies = ["drumlin-agent-own-node", "drumlin-controller-own-volumes"];
    let try_probe = |policy: &str| {
        let text = if policy == policies[0] {
            volume("drumlin-policy-probe", "capacity: 1Gi")
        } else {
            persistent("drumlin-policy-probe", "csi.drumlin.dev", "any")
        };
        let dry = ["--server-side", "--dry-run=server", "-f", "-"];
        let words = [&["-n", SYSTEM, "apply"][..], &dry].concat();
        account.try_with_input(&words, &text)
    };
    // What is applied is in force a moment later.
    for policy in policies {
        let answer = || said(&try_probe(policy));
        eventually(answer, |said| said.contains("this policy is in force")).await;
    }
    let mut controller = Daemon::start(drumlin(), &arguments, &[]);
    let says = |controller: &Daemon, what: &str| {
        let log = controller.log();
        let lines = log.lines().filter(|line| line.contains(what));
        lines
            .filter(|line| policies.iter().any(|policy| line.contains(policy)))
            .count()
    };
    eventually(
        || says(&controller, "policy is in force"),
        |said| *said == 2,
    )
    .await;
    // What it tries it may do by that name only, and nothing comes of it.
    let probe = |name: &str| {
        let text = volume(name, "capacity: 1Gi");
        account.try_with_input(
            &["-n", "default", "apply", "--server-side", "-f", "-"],
            &text,
        )
    };
    assert!(said(&probe("drumlin-policy-probe")).contains("this policy is in force"));
    assert!(said(&probe("another")).contains("cannot create"));
    controller.stop();

    for policy in policies {
        cluster.kubectl(&["delete", "validatingadmissionpolicybinding", policy]);
        eventually(|| try_probe(policy).status.success(), |allowed| *allowed).await;
    }
    controller.restart();
    eventually(
        || says(&controller, "policy is not in force"),
        |said| *said == 2,
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
    eventually(events, |told| *told == 2).await;
    let left = cluster.kubectl(&["get", "dv,pv", "-A", "-o", "name"]);
    assert_eq!(left.trim(), "");
}
