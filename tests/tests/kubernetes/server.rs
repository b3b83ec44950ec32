//! The programs of an API server of a test's own, killed and started again.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::PATIENCE,
    cluster::Cluster,
    programs::{output, run},
};

/// The directory with everything of this server.
pub(crate) fn directory(cluster: &Cluster) -> PathBuf {
    cluster.kubeconfig().parent().unwrap().to_owned()
}

fn file(cluster: &Cluster, program: &str, end: &str) -> String {
    let path = directory(cluster).join(format!("{program}.{end}"));
    path.to_string_lossy().into_owned()
}

/// Kills `etcd` or `kube-apiserver`, and returns once it is gone.
pub(crate) fn kill(cluster: &Cluster, program: &str) {
    let pid = std::fs::read_to_string(file(cluster, program, "pid")).unwrap();
    output("kill", &["-9", pid.trim()]);
    // Its port is free when it is gone.
    let gone = PathBuf::from(format!("/proc/{}", pid.trim()));
    let begun = Instant::now();
    while gone.exists() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts it again.
pub(crate) fn start(cluster: &Cluster, program: &str) {
    run("bash", &[&file(cluster, program, "command")]);
}
