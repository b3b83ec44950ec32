//! The unit, as its administrator and systemd see it.

use std::{
    fs,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::ProbeRequest;
use drumlin_tests::{
    agent::PATIENCE,
    programs::{drumlin, programs_of, run, workspace},
};

use crate::volume::identity;

/// Where an administrator puts units.
const UNITS: &str = "/etc/systemd/system";
/// What its processes are in.
const CGROUP: &str = "/sys/fs/cgroup/system.slice/drumlin.service/cgroup.procs";

/// Does what docs/src/host.md says is to be done by hand, with the configuration of the example and more classes; `enable` has
/// systemd read the units.
pub(crate) fn install(classes: &str) {
    let example = workspace().join("examples/database-host");
    let manifests = "/etc/drumlin/manifests.d";
    fs::create_dir_all(manifests).unwrap();
    std::os::unix::fs::symlink(drumlin(), "/usr/bin/drumlin").unwrap();
    let config = fs::read_to_string(example.join("config.yaml")).unwrap();
    fs::write("/etc/drumlin/config.yaml", config + classes).unwrap();
    let units = workspace().join("packaging/systemd");
    for (from, to) in [
        (example.join("manifests/database.yaml"), manifests),
        (units.join("drumlin.service"), UNITS),
        (units.join("drumlin-mounts.service"), UNITS),
        (units.join("drumlin-mounts.target"), UNITS),
    ] {
        run("install", &["-m", "644", "-t", to, &from.to_string_lossy()]);
    }
}

pub(crate) fn systemctl(words: &[&str]) -> String {
    run("systemctl", words)
}

pub(crate) fn property(unit: &str, name: &str) -> String {
    let shown = systemctl(&["show", "--value", "-p", name, unit]);
    shown.trim().to_owned()
}

/// The agent's process.
pub(crate) fn main_pid() -> i32 {
    property("drumlin", "MainPID").parse().unwrap()
}

/// The agent's thaw watchdog, if one runs.
pub(crate) fn watchdog_of(agent: i32) -> Option<i32> {
    let words = |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut programs = programs_of(agent).into_iter();
    programs.find(|pid| words(*pid).ends_with(b"\0thaw-watchdog\0"))
}

/// All processes of the unit.
pub(crate) fn processes() -> Vec<i32> {
    let listed = fs::read_to_string(CGROUP).unwrap_or_default();
    listed.lines().map(|pid| pid.parse().unwrap()).collect()
}

/// Waits until its socket answers that all classes can be used.
pub(crate) async fn answers() {
    until("the agent does not answer", async || {
        let answer = identity().probe(ProbeRequest {}).await;
        answer.is_ok().then_some(())
    })
    .await;
}

/// Waits until another process than this is the agent, and answers.
pub(crate) async fn replaced(former: i32) {
    until("the agent is not started again", async || {
        let now = main_pid();
        (now != 0 && now != former).then_some(())
    })
    .await;
    answers().await;
}

/// Waits for something that comes.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + 3 * PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Starts it again as one that stops when it first comes to a point; the next start is as before.
pub(crate) async fn restart_until(point: &str) {
    let point = format!("DRUMLIN_FAIL={point}");
    systemctl(&["set-environment", &point, "DRUMLIN_FAIL_BY=stop"]);
    systemctl(&["restart", "drumlin"]);
    systemctl(&["unset-environment", "DRUMLIN_FAIL", "DRUMLIN_FAIL_BY"]);
    answers().await;
}

/// Starts it again as one that systemd takes for hung after so many seconds; none is what the unit says.
pub(crate) async fn restart_with_watchdog(seconds: Option<u32>) {
    let more = format!("{UNITS}/drumlin.service.d");
    match seconds {
        Some(seconds) => {
            fs::create_dir_all(&more).unwrap();
            let lines = format!("[Service]\nWatchdogSec={seconds}s\n");
            fs::write(format!("{more}/watchdog.conf"), lines).unwrap();
        }
        None => fs::remove_dir_all(&more).unwrap(),
    }
    systemctl(&["daemon-reload"]);
    systemctl(&["restart", "drumlin"]);
    answers().await;
}
