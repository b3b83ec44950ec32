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
pub(crate) const UNITS: &str = "/etc/systemd/system";
/// Where an administrator puts manifests.
pub(crate) const MANIFESTS: &str = "/etc/drumlin/manifests.d";
/// What its processes are in.
const CGROUP: &str = "/sys/fs/cgroup/system.slice/drumlin.service/cgroup.procs";

/// Does what docs/src/host.md says is to be done by hand, with the configuration of an example and more classes; `enable` has
/// systemd read the units.
pub(crate) fn install(example: &str, classes: &str) {
    let example = workspace().join("examples").join(example);
    fs::create_dir_all(MANIFESTS).unwrap();
    std::os::unix::fs::symlink(drumlin(), "/usr/bin/drumlin").unwrap();
    let config = fs::read_to_string(example.join("config.yaml")).unwrap();
    fs::write("/etc/drumlin/config.yaml", config + classes).unwrap();
    for (from, to) in [
        (workspace().join("packaging/systemd"), UNITS),
        (example.join("manifests"), MANIFESTS),
    ] {
        for file in fs::read_dir(from).unwrap() {
            let file = file.unwrap().path();
            run("install", &["-m", "644", "-t", to, &file.to_string_lossy()]);
        }
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

/// What becomes of an agent at a fail point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Killed,
    Stopped,
}

/// Starts it again as one that ends so when it first comes to a point; the next start is as before.
pub(crate) async fn restart_until(point: &str, end: End) {
    let point = format!("DRUMLIN_FAIL={point}");
    let words: &[&str] = match end {
        End::Killed => &["set-environment", &point],
        End::Stopped => &["set-environment", &point, "DRUMLIN_FAIL_BY=stop"],
    };
    systemctl(words);
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
