//! File systems of volumes: after errors, shut down, and frozen.

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::{Agent, Options, PATIENCE},
    doctor::Diagnosis,
    programs::{output, process_state, program, programs_of, run},
    requests::{create_group_snapshot, mounted, snapshot},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    group_snapshots::with_reflinks,
    helpers::{mount, trigger_ext4_error, unmount, volume},
    thaw_watchdog::{eventually, until_stopped},
};

async fn used(agent: &Agent, kind: &str, mebibytes: i64) -> (String, (String, String)) {
    let capability = mounted(kind);
    let id = volume(agent, kind, mebibytes, &capability).await;
    let at = mount(agent, kind, &id, &capability).await;
    (id, at)
}

#[tokio::test]
async fn a_file_system_that_became_read_only_after_an_error_is_told() {
    let agent = Agent::start().await;
    let (id, at) = used(&agent, "ext4", 32).await;
    let found = Diagnosis::of(&agent);
    for check in [
        "file-system-errors",
        "read-only-after-error",
        "file-system-shut-down",
    ] {
        found.lacks(check);
    }
    run("mount", &["-o", "remount,errors=remount-ro", &at.0]);
    trigger_ext4_error(&at.0);
    let found = Diagnosis::of(&agent);
    let message = found.text("file-system-errors", "/", "message");
    assert!(message.contains("ext4 has counted"), "{message}");
    found.finds("read-only-after-error", "/");
    unmount(&agent, &id, &at).await;
    Diagnosis::of(&agent).lacks("file-system-errors");
}

#[tokio::test]
async fn a_file_system_that_has_shut_itself_down_is_told() {
    let agent = Agent::start().await;
    let (id, at) = used(&agent, "xfs", 320).await;
    Diagnosis::of(&agent).lacks("file-system-shut-down");
    run("xfs_io", &["-x", "-c", "shutdown", &at.0]);
    Diagnosis::of(&agent).finds("file-system-shut-down", "/");
    unmount(&agent, &id, &at).await;
    Diagnosis::of(&agent).lacks("file-system-shut-down");
}

#[tokio::test]
async fn a_volume_that_is_nearly_full_is_told() {
    let agent = Agent::start().await;
    let (id, at) = used(&agent, "ext4", 32).await;
    Diagnosis::of(&agent).lacks("volume-full");
    let file = format!("{}/file", at.1);
    let script = format!("dd if=/dev/zero of={file} bs=1M status=none; true");
    run("sh", &["-c", &script]);
    let message = Diagnosis::of(&agent).text("volume-full", "/", "message");
    assert!(message.contains("of its space"), "{message}");
    fs::remove_file(&file).unwrap();
    Diagnosis::of(&agent).lacks("volume-full");
    // Without blocks: names in directories.
    let names = "i=0; while true > \"$0/$i\"; do i=$((i + 1)); done 2> /dev/null; true";
    run("sh", &["-c", names, &at.1]);
    let message = Diagnosis::of(&agent).text("volume-full", "/", "message");
    assert!(message.contains("of its inodes"), "{message}");
    unmount(&agent, &id, &at).await;
    Diagnosis::of(&agent).lacks("volume-full");
}

#[tokio::test]
async fn a_frozen_file_system_is_found_by_those_who_wait_for_it() {
    let agent = Agent::start().await;
    let (_, at) = used(&agent, "ext4", 32).await;
    let mut writer = program("sh");
    let line = "exec >> \"$0/log\"; read go; echo written; read end";
    let mut writer = writer
        .args(["-c", line, &at.1])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = writer.stdin.take().unwrap();
    let log = format!("{}/log", at.1);
    eventually("the writer does not begin", || fs::metadata(&log).ok()).await;
    run("fsfreeze", &["--freeze", &at.1]);
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    let pid = i32::try_from(writer.id()).unwrap();
    eventually("the writer does not wait", || {
        (process_state(pid)? == 'D').then_some(())
    })
    .await;
    let found = Diagnosis::of(&agent);
    let thawed = std::panic::catch_unwind(|| {
        let message = found.text("frozen-file-system", "/", "message");
        assert!(message.contains(&pid.to_string()), "{message}");
        found.mend("frozen-file-system", "/");
    });
    output("fsfreeze", &["--unfreeze", &at.1]);
    thawed.unwrap();
    drop(input);
    writer.wait().unwrap();
    Diagnosis::of(&agent).lacks("frozen-file-system");
}

#[tokio::test]
async fn what_an_agent_froze_before_it_died_is_found_by_its_marker() {
    let mut agent = Agent::start().await;
    let (id, at) = used(&agent, "ext4", 32).await;
    agent.kill();
    agent
        .restart_with(Options::default().killed_at("directory.copy.still"))
        .await;
    let mut controller = agent.controller();
    controller
        .create_snapshot(snapshot("s", &id))
        .await
        .unwrap_err();
    agent.wait_until_killed().await;
    let found = Diagnosis::of(&agent);
    let mended = std::panic::catch_unwind(|| found.mend("frozen-file-system", "/"));
    output("fsfreeze", &["--unfreeze", &at.1]);
    mended.unwrap();
    agent.restart_with(Options::default()).await;
    volume(&agent, "other", 32, &mounted("ext4")).await;
    Diagnosis::of(&agent).lacks("frozen-file-system");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thaw_watchdog_that_is_left_is_found_and_goes_on() {
    let mut agent = with_reflinks(1200).await;
    let (id, at) = used(&agent, "ext4", 32).await;
    agent.kill();
    agent
        .restart_with(Options::default().stopped_at("quiesce.held"))
        .await;
    let mut groups = agent.group_controller();
    let request = create_group_snapshot("g", vec![id]);
    let mut call = tokio::spawn(async move { groups.create_volume_group_snapshot(request).await });
    until_stopped(&agent, &mut call).await;
    let is_watchdog = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.ends_with(b"\0thaw-watchdog\0")
    };
    let watchdog = programs_of(agent.pid())
        .into_iter()
        .find(is_watchdog)
        .unwrap();
    kill(Pid::from_raw(watchdog), Signal::SIGSTOP).unwrap();
    agent.kill();
    let _ = call.await;
    let found = Diagnosis::of(&agent);
    let mended = std::panic::catch_unwind(|| {
        found.mend("leftover-thaw-watchdog", &format!("process {watchdog}"));
    });
    let _ = kill(Pid::from_raw(watchdog), Signal::SIGCONT);
    mended.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while process_state(watchdog).is_some_and(|state| state != 'Z') {
        assert!(Instant::now() < deadline, "it does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Diagnosis::of(&agent).lacks("leftover-thaw-watchdog");
    fs::write(format!("{}/after", at.1), "written").unwrap();
}

#[tokio::test]
async fn a_line_of_fstab_that_mounts_a_volume_is_told() {
    let agent = Agent::start().await;
    let (id, at) = used(&agent, "ext4", 32).await;
    let fstab = agent.path("fstab");
    let told = || {
        let line = format!("export LIBMOUNT_FSTAB={}", fstab.display());
        Diagnosis::where_mounts_are(&agent, &line)
    };
    let source = run("findmnt", &["-no", "SOURCE", &at.0]);
    fs::write(&fstab, format!("# by hand\n{} /srv ext4\n", source.trim())).unwrap();
    let object = format!("{}:2", fstab.display());
    let found = told();
    let message = found.text("mounted-by-host", &object, "message");
    assert!(message.contains("both do so"), "{message}");
    fs::write(&fstab, "/dev/none /srv ext4\n").unwrap();
    told().lacks("mounted-by-host");
    // One that cannot be read.
    fs::remove_file(&fstab).unwrap();
    fs::create_dir(&fstab).unwrap();
    told().finds("not-checked", "fstab");
    unmount(&agent, &id, &at).await;
}
