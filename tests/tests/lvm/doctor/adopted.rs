//! Mounts of logical volumes that were made by others and adopted: they keep their names.

use std::{fs, process::Stdio};

use drumlin_tests::{
    agent::Agent,
    doctor::Diagnosis,
    programs::{output, process_state, program, run},
    storage::lvm,
};

use crate::{
    foreign_helpers::done,
    foreign_taken::start,
    helpers::{text, trigger_ext4_error},
    thaw_watchdog::eventually,
};

/// A mounted volume of others, and its path.
fn foreign(agent: &Agent, source: &str, file_system: &str) -> String {
    let (group, name) = source.split_once('/').unwrap();
    lvm("lvcreate", &["-y", "-L", "320M", "-n", name, group]);
    let device = format!("/dev/{source}");
    run(&format!("mkfs.{file_system}"), &["-q", &device]);
    let target = text(agent.scratch.directory(name));
    run("mount", &[&device, &target]);
    target
}

fn mounts(agent: &Agent) -> Diagnosis {
    Diagnosis::of_part(agent, "mounts")
}

#[tokio::test]
async fn mounts_of_adopted_volumes_are_looked_at_and_those_of_others_are_not() {
    let (host, group) = start().await;
    let agent = &host.agent;
    let source = format!("{group}/data");
    let target = foreign(agent, &source, "ext4");
    let hide = || run("mount", &["-t", "tmpfs", "none", &target]);
    hide();
    mounts(agent).lacks("hidden-mount");
    run("umount", &[&target]);

    done(agent, "adopt", &[&source, "data", "--yes"]);
    let checks = [
        "hidden-mount",
        "file-system-errors",
        "read-only-after-error",
    ];
    let found = mounts(agent);
    for check in checks {
        found.lacks(check);
    }
    hide();
    mounts(agent).mend("hidden-mount", &target);
    mounts(agent).lacks("hidden-mount");
    run("mount", &["-o", "remount,errors=remount-ro", &target]);
    trigger_ext4_error(&target);
    let found = mounts(agent);
    found.finds("file-system-errors", &target);
    found.finds("read-only-after-error", &target);
    run("umount", &[&target]);
    let found = mounts(agent);
    for check in checks {
        found.lacks(check);
    }
}

#[tokio::test]
async fn an_adopted_xfs_that_is_frozen_or_has_shut_itself_down_is_told() {
    let (host, group) = start().await;
    let agent = &host.agent;
    let source = format!("{group}/data");
    let target = foreign(agent, &source, "xfs");
    done(agent, "adopt", &[&source, "data", "--yes"]);
    let frozen = || Diagnosis::of_part(agent, "frozen");
    frozen().lacks("frozen-file-system");
    let mut writer = program("sh");
    let line = "exec >> \"$0/log\"; read go; echo written; read end";
    let writer = writer.args(["-c", line, &target]).stdin(Stdio::piped());
    let mut writer = writer.spawn().unwrap();
    let mut input = writer.stdin.take().unwrap();
    let log = format!("{target}/log");
    eventually("the writer does not begin", || fs::metadata(&log).ok()).await;
    run("fsfreeze", &["--freeze", &target]);
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    let pid = i32::try_from(writer.id()).unwrap();
    eventually("the writer does not wait", || {
        (process_state(pid)? == 'D').then_some(())
    })
    .await;
    let found = frozen();
    let mended = std::panic::catch_unwind(|| found.mend("frozen-file-system", &target));
    output("fsfreeze", &["--unfreeze", &target]);
    mended.unwrap();
    drop(input);
    writer.wait().unwrap();
    frozen().lacks("frozen-file-system");

    mounts(agent).lacks("file-system-shut-down");
    run("xfs_io", &["-x", "-c", "shutdown", &target]);
    mounts(agent).finds("file-system-shut-down", &target);
    run("umount", &[&target]);
    mounts(agent).lacks("file-system-shut-down");
}
