//! The agent as a service of a whole Debian host: `tests/src/bin/service` has the steps.
//!
//! Runs outside of the lab, whose machines it starts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use drumlin_tests::{
    packages,
    programs::{drumlin, program, workspace},
};

fn serves_beside_systemd(release: &str, disks: &[&str], form: &[&str]) {
    let text = serves(release, disks, form);
    assert!(text.contains("service: rebooted:"), "{release}: {text}");
}

/// What the steps of a form say, which must succeed.
fn serves(release: &str, disks: &[&str], form: &[&str]) -> String {
    let machine = program(workspace().join("tests/lab/host/run"))
        .args(["-r", release, "-t", "800"])
        .args(disks.iter().flat_map(|size| ["-d", size]))
        .arg("--")
        .arg(env!("CARGO_BIN_EXE_service"))
        .args(form)
        .env("DRUMLIN_BIN", drumlin())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&machine.stdout);
    let complaint = String::from_utf8_lossy(&machine.stderr);
    report(&text);
    assert!(machine.status.success(), "{release}: {text}\n{complaint}");
    text.into_owned()
}

#[test]
fn an_agent_of_bookworm_outlives_restarts_kills_and_a_reboot_with_its_mounts_in_use() {
    serves_beside_systemd("bookworm", &["3G", "512M"], &[]);
}

#[test]
fn an_agent_of_trixie_outlives_restarts_kills_and_a_reboot_with_its_mounts_in_use() {
    serves_beside_systemd("trixie", &["3G", "512M"], &["short"]);
}

/// The package is installed, upgraded, removed and purged where systemd runs and a volume is in use.
#[test]
fn a_volume_of_a_packaged_agent_stays_in_use_whatever_becomes_of_the_package() {
    // Below it everything is in the machine, too.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    packages::make(directory.path());
    let place = directory.path().to_str().unwrap();
    let text = serves("bookworm", &[], &["packaged", place]);
    assert!(text.contains("service: purged:"), "{text}");
}

/// Does what `docs/src/postgresql.md` says, with the files of the example as they are.
#[test]
fn postgresql_is_restored_beside_itself_from_a_group_snapshot_of_its_schedule() {
    serves_beside_systemd("bookworm", &["20G"], &["postgresql"]);
}

#[expect(clippy::print_stdout, reason = "how long each step took")]
fn report(text: &str) {
    println!("{text}");
}
