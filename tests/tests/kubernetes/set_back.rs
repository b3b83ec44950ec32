//! An API server that is set back to an older state, as a restore of etcd from a backup does.

use std::{collections::BTreeMap, path::Path};

use drumlin_tests::{
    daemon::Daemon,
    programs::run,
    requests::{mounted, stage},
};
use tonic::Code;

use crate::{
    end_to_end::claim,
    front::{calls, no_call_is_left, unclaimed},
    helpers::{get, home, put},
    server,
    sidecars::{NODE, Stack, handle},
};

/// Does something to the files of etcd, while neither it nor the server runs.
fn at_rest(stack: &Stack, change: impl FnOnce(&Path)) {
    server::kill(&stack.cluster, "kube-apiserver");
    server::kill(&stack.cluster, "etcd");
    change(&server::directory(&stack.cluster));
    server::start(&stack.cluster, "etcd");
    server::start(&stack.cluster, "kube-apiserver");
    let ready = || stack.cluster.try_kubectl(&["get", "--raw", "/readyz"]);
    stack.eventually(ready, |ready| ready.status.success());
}

/// As Kubernetes recommends: what watches the server is started again. What is ours begins its watches anew by itself.
fn restart_all_but_ours(daemons: &mut BTreeMap<String, Daemon>) {
    for (name, daemon) in daemons {
        if name != "controller" {
            daemon.restart();
        }
    }
}

fn copied(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    run(
        "cp",
        &["-a", &from.to_string_lossy(), &to.to_string_lossy()],
    );
}

/// The page on Kubernetes: what the restore of a backup needs, and what becomes of volumes that are younger or gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_of_etcd_brings_no_call_back_that_harms_and_costs_no_volume() {
    // Audits of hours are audits of seconds.
    let mut stack = Stack::with(&[NODE], &[("DRUMLIN_TIME_LAPSE", "3600")]).await;
    let space = stack.cluster.namespace();
    let kubelet = stack.kubelet();
    space.apply(&[claim("kept", "320Mi", ""), claim("gone", "320Mi", "")].concat());
    let (kept, gone) = (
        stack.volume_of(&space, "kept"),
        stack.volume_of(&space, "gone"),
    );
    let at = kubelet.mount(&kept).await;
    put(&at, "file", b"precious");
    kubelet.unmount(&kept).await;

    // A call that nobody has begun yet is in the backup, too.
    stack.agent.kill();
    space.apply(&claim("waiting", "320Mi", ""));
    stack.eventually(|| calls(&stack), |calls| !calls.is_empty());
    at_rest(&stack, |of| copied(&of.join("etcd"), &of.join("backup")));
    stack.agent.restart().await;
    restart_all_but_ours(&mut stack.daemons);

    // What happens after it.
    stack.volume_of(&space, "waiting");
    space.kubectl(&["delete", "pvc/waiting", "pvc/gone", "--timeout=120s"]);
    let images = stack.agent.path("state/images/volumes");
    let count = || std::fs::read_dir(&images).map_or(0, Iterator::count);
    stack.eventually(count, |count| *count == 1);
    space.apply(&claim("late", "320Mi", ""));
    let late = stack.volume_of(&space, "late");
    let at = kubelet.mount(&late).await;
    put(&at, "file", b"written since");
    kubelet.unmount(&late).await;

    at_rest(&stack, |of| copied(&of.join("backup"), &of.join("etcd")));
    restart_all_but_ours(&mut stack.daemons);

    // The call runs once more, and its claim has a volume; nothing else runs.
    stack.volume_of(&space, "waiting");
    no_call_is_left(&stack).await;
    let at = kubelet.mount(&kept).await;
    assert_eq!(get(&at, "file"), b"precious");
    kubelet.unmount(&kept).await;
    // What was deleted since is not made anew: its pod waits, and hears why.
    assert!(space.find("pvc/gone").is_some());
    let staging = stack.agent.path("staging-gone").display().to_string();
    let request = stage(&handle(&gone), &staging, &mounted("xfs"));
    let status = stack.agent.node().node_stage_volume(request).await;
    assert_eq!(status.unwrap_err().code(), Code::NotFound);
    // What was made since is kept, listed, and given to no other claim of that name.
    assert!(space.find("pvc/late").is_none());
    let listed = || unclaimed(&stack, NODE);
    stack.eventually(listed, |listed| *listed == [handle(&late)]);
    space.apply(&claim("late", "320Mi", ""));
    let another = stack.volume_of(&space, "late");
    assert_ne!(handle(&another), handle(&late));
    assert!(home(&stack.agent, &handle(&late)).exists());
    let at = kubelet.mount(&late).await;
    assert_eq!(get(&at, "file"), b"written since");
    kubelet.unmount(&late).await;
}
