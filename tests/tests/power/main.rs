//! The power is cut: the machine of the lab is killed in the middle of changes and booted again on the same disks.
//!
//! Runs outside of the lab, which it starts and kills. `POWER_CUTS` says how often (default 10).
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use drumlin_tests::programs::{drumlin, program, workspace};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

/// A machine on these disks.
fn machine(disks: &Path, volumes: &str, command: &[&str]) -> Command {
    let mut machine = program(workspace().join("tests/lab/vm/run"));
    machine
        .args(["-d", "512M", "-d", "512M", "-t", "120", "-k"])
        .arg(disks)
        .arg("--")
        .args(command)
        .env("DRUMLIN_VOLUMES", volumes)
        .env("DRUMLIN_BIN", drumlin());
    machine
}

fn run(disks: &Path, volumes: &str, command: &[&str], what: &str) {
    let output = machine(disks, volumes, command).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {text}\n{complaint}");
}

/// Lines of what was acknowledged.
fn acknowledged(journal: &Path) -> usize {
    std::fs::read_to_string(journal)
        .unwrap_or_default()
        .lines()
        .count()
}

#[test]
fn thin_volumes_survive_every_cut() {
    let pool = "&& lvcreate -q -L 900M -T power/pool";
    what_was_acknowledged_survives("thin", pool);
}

#[test]
fn thick_volumes_survive_every_cut() {
    what_was_acknowledged_survives("linear", "");
}

#[test]
fn mirrored_volumes_survive_every_cut() {
    what_was_acknowledged_survives("raid1", "");
}

fn what_was_acknowledged_survives(volumes: &str, pool: &str) {
    let cuts: u32 = std::env::var("POWER_CUTS").map_or(10, |cuts| cuts.parse().unwrap());
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let disks = directory.path();
    let journal = disks.join("journal");
    let power = PathBuf::from(env!("CARGO_BIN_EXE_power"));
    let (power, file) = (power.to_str().unwrap(), journal.to_str().unwrap());
    let make = format!("vgcreate -q -s 1M power /dev/ubdb /dev/ubdc {pool}");
    run(disks, volumes, &["sh", "-c", &make], "the group");
    let mut changes = 0;
    for cut in 0..cuts {
        let begun = acknowledged(&journal);
        let mut load = machine(disks, volumes, &[power, "load", file]);
        let mut load = load
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From the middle of its first change on; each cut meets another moment.
        while acknowledged(&journal) == begun {
            assert!(
                load.try_wait().unwrap().is_none(),
                "cut {cut}: the load ended"
            );
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(u64::from(cut * 367 % 3000)));
        killpg(
            Pid::from_raw(load.id().try_into().unwrap()),
            Signal::SIGKILL,
        )
        .unwrap();
        load.wait().unwrap();
        changes += acknowledged(&journal) - begun;
        let what = format!("{volumes}, after cut {cut}");
        run(disks, volumes, &[power, "check", file], &what);
    }
    // The first ones come soon.
    let each = if cuts < 10 { 0 } else { 4 };
    assert!(
        changes > usize::try_from(cuts).unwrap() * each,
        "only {changes} changes in {cuts} cuts"
    );
}
