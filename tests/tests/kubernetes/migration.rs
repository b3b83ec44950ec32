//! From a provisioner beside the agent of each node, as former installations had it, to that of the controller, and back,
//! while claims come and go.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use drumlin_tests::{cluster::Cluster, daemon::Daemon};

use crate::{
    end_to_end::{claim, nothing_is_left},
    installed::sidecars,
    rbac::SYSTEM,
    sidecars::{NODE, Stack, handle},
};

/// So long each of the steps lasts.
const STEP: Duration = Duration::from_secs(10);

/// The provisioner of a node, with the arguments that it had; with an administrator's rights, for its account is gone.
fn beside_the_agent(stack: &Stack) -> Daemon {
    let kubeconfig = stack.cluster.kubeconfig().display().to_string();
    let arguments = [
        format!("--csi-address={}", stack.agent.socket().display()),
        "--node-deployment".to_owned(),
        "--strict-topology".to_owned(),
        "--immediate-topology=false".to_owned(),
        "--extra-create-metadata".to_owned(),
        "--timeout=60s".to_owned(),
        "--retry-interval-max=1m".to_owned(),
        "--kube-api-qps=20".to_owned(),
        "--kube-api-burst=40".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
    ];
    let environment = [
        ("NODE_NAME", NODE),
        ("NAMESPACE", SYSTEM),
        ("POD_NAME", "drumlin-provisioner-1"),
        ("KUBECONFIG", &*kubeconfig),
    ];
    Daemon::start(sidecars().join("csi-provisioner"), &arguments, &environment)
}

/// Makes claims one after the other until it is over, and deletes all but the last three; says what each was bound to.
fn claims_come_and_go(kubeconfig: &Path, is_over: &AtomicBool) -> Vec<String> {
    let cluster = Cluster::known_by(kubeconfig);
    let space = cluster.namespace();
    let mut handles = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let number = handles.len();
        let name = format!("claim-{number}");
        space.apply(&claim(&name, "320Mi", ""));
        let bound = space.until(&format!("pvc/{name}"), |now| {
            now["status"]["phase"] == "Bound"
        });
        let volume = bound["spec"]["volumeName"].as_str().unwrap();
        handles.push(handle(&space.get(&format!("pv/{volume}"))));
        if let Some(former) = number.checked_sub(3) {
            space.kubectl(&["delete", &format!("pvc/claim-{former}"), "--wait=false"]);
        }
    }
    space.kubectl(&["delete", "pvc", "--all", "--timeout=120s"]);
    handles
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[expect(clippy::print_stdout, reason = "a figure")]
async fn claims_are_bound_once_whichever_provisioner_there_is() {
    let mut stack = Stack::start().await;
    let is_over = Arc::new(AtomicBool::new(false));
    let claiming = {
        let (kubeconfig, is_over) = (stack.cluster.kubeconfig().to_owned(), Arc::clone(&is_over));
        thread::spawn(move || claims_come_and_go(&kubeconfig, &is_over))
    };
    thread::sleep(STEP);
    // Both, and then the former one alone.
    let mut former = beside_the_agent(&stack);
    thread::sleep(STEP);
    let central = ["provisioner", "resizer"];
    for name in central {
        stack.daemons.get_mut(name).unwrap().kill();
    }
    thread::sleep(STEP);
    // Both again, and then the controller's alone, once its lease is free.
    for name in central {
        stack.daemons.get_mut(name).unwrap().restart();
    }
    thread::sleep(2 * STEP);
    former.kill();
    thread::sleep(STEP);
    is_over.store(true, Ordering::Relaxed);
    let handles = claiming.join().unwrap();
    println!("{} claims were bound", handles.len());
    assert!(handles.len() > 6, "{handles:?}");
    let different: BTreeSet<_> = handles.iter().collect();
    assert_eq!(different.len(), handles.len(), "{handles:?}");
    nothing_is_left(&stack);
}
