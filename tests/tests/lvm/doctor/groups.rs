//! Volume groups: their disks, their metadata area, their lock, and whoever else uses them.

use std::fs;

use drumlin_tests::{
    agent::{Agent, Options},
    doctor::Diagnosis,
    programs::run,
    storage::{Scratch, lvm},
};
use nix::fcntl::{Flock, FlockArg};

use super::look;
use crate::{
    groups::{group, thick},
    helpers::text,
    same_name::{plug_in, rename},
};

#[tokio::test]
async fn a_group_that_lost_a_disk_is_exported_or_locked_is_told() {
    let mut agent = thick(64, "").await;
    let group = group(&agent);
    agent.kill();
    let checks = [
        "missing-disk",
        "volume-group-missing",
        "volume-group-refused",
        "lock-held",
        "metadata-area-filling",
        "duplicate-volume-group",
        "silent-disk",
    ];
    let found = look(&agent);
    for check in checks {
        found.lacks(check);
    }
    lvm("vgexport", &[&group]);
    let message = look(&agent).text("volume-group-refused", &group, "message");
    assert!(message.contains("vgimport"), "{message}");
    lvm("vgimport", &[&group]);

    let lock = format!("/run/lock/lvm/V_{group}");
    let file = fs::File::create(&lock).unwrap();
    let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
    let message = look(&agent).text("lock-held", &group, "message");
    assert!(
        message.contains(&format!("process {}", std::process::id())),
        "{message}"
    );
    drop(held);
    fs::remove_file(lock).unwrap();

    let image = text(agent.path("disk-b"));
    let found = run(
        "losetup",
        &["--noheadings", "--output", "NAME", "--associated", &image],
    );
    let disk = found.trim();
    run("losetup", &["-d", disk]);
    look(&agent).finds("missing-disk", &group);
    run("losetup", &[disk, &image]);
    let found = look(&agent);
    for check in checks {
        found.lacks(check);
    }
    // Tags of others fill the area.
    for letter in ["a", "b", "c", "d"] {
        lvm("vgchange", &["--addtag", &letter.repeat(100_000), &group]);
    }
    look(&agent).finds("metadata-area-filling", &group);
}

#[tokio::test]
async fn two_groups_of_one_name_and_two_agents_over_one_group_are_told() {
    let agent = thick(64, "").await;
    let group = group(&agent);
    let options = Options {
        config: Some(format!(
            "classes: [{{name: other, thick: {{volumeGroup: {group}}}}}]\n"
        )),
        ..Options::default()
    };
    Diagnosis::of_part(&agent, "agents").lacks("other-agent");
    let other = Agent::with(Scratch::new(), options).await;
    let message = Diagnosis::of_part(&agent, "agents").text("other-agent", &group, "message");
    assert!(
        message.contains(&format!("process {}", other.pid())),
        "{message}"
    );
    drop(other);

    look(&agent).lacks("duplicate-volume-group");
    let disk = plug_in(&agent, "disk-c");
    let message = look(&agent).text("duplicate-volume-group", &group, "message");
    assert!(message.contains(&disk), "{message}");
    rename(&disk, &format!("{group}-c"));
    look(&agent).lacks("duplicate-volume-group");
}

#[tokio::test]
async fn a_disk_that_does_not_answer_is_told_and_not_waited_for() {
    let agent = thick(64, "").await;
    let below = agent.scratch.disk("below", 8);
    let name = format!("{}-silent", group(&agent));
    let table = format!("0 16384 linear {below} 0");
    run("dmsetup", &["create", &name, "--table", &table]);
    let path = format!("/dev/mapper/{name}");
    let above = run("losetup", &["--find", "--show", "--direct-io=on", &path])
        .trim()
        .to_owned();
    run("dmsetup", &["suspend", &name]);
    let found = Diagnosis::of(&agent);
    run("dmsetup", &["resume", &name]);
    found.finds("silent-disk", &above);
    assert!(found.all("volume-group-missing").is_empty(), "{found:?}");
    run("losetup", &["-d", &above]);
    run("udevadm", &["settle"]);
    run("dmsetup", &["remove", "--retry", &name]);
    look(&agent).lacks("silent-disk");
}
