//! The agent and its LVM are killed together, just when LVM has written the record of a thick volume or snapshot and has
//! not activated it yet.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    sync::mpsc,
    thread,
    time::Duration,
};

use drumlin_proto::csi::v1::CreateVolumeRequest;
use drumlin_tests::{
    agent::{Agent, Options as AgentOptions, Volumes, eventually},
    does_not_apply,
    programs::run,
    requests::{create, delete_snapshot, from_snapshot, raw, snapshot},
    state::assert_devices_work,
    storage::lvm,
};
use nix::{
    fcntl::{Flock, FlockArg},
    sys::{
        ptrace::{self, Options},
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tonic::Code;

use crate::{
    copies::{is_left, write_all},
    groups::{group, names, thick, within},
    helpers::{bytes_of, ok, volume},
    udev::has_udevd,
};

/// What the numbers of device-mapper's calls have in common, `DM_IOCTL` of linux/dm-ioctl.h.
const DEVICE_MAPPER: u64 = 0xfd;
/// `ioctl`, of the x86-64 that the machine of the lab is.
const IOCTL: u64 = 16;

/// Each call of a program that is looked at takes long.
const SLOW: Duration = Duration::from_mins(2);

/// The `lvm` that the agent keeps for its next change.
fn kept_lvm(agent: &Agent) -> Option<Pid> {
    let children = format!("/proc/{0}/task", agent.pid());
    let tasks = fs::read_dir(children).unwrap().map(Result::unwrap);
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")));
    let children: String = children
        .map(|pids| pids.unwrap_or_default() + " ")
        .collect();
    let mut pids = children.split_whitespace();
    let is_lvm = |pid: &&str| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "lvm")
    };
    Some(Pid::from_raw(pids.find(is_lvm)?.parse().unwrap()))
}

/// Has the agent do something, and kills it and its LVM at that one's first call of device-mapper's with which the group's
/// record is as wanted.
async fn kill_both<T: Send + 'static>(
    agent: &mut Agent,
    request: impl Future<Output = T> + Send + 'static,
    is_met: impl Fn(&str) -> bool + Send + 'static,
) {
    let lvm = eventually(|| kept_lvm(agent), Option::is_some).await;
    let (lvm, of, group) = (lvm.unwrap(), Pid::from_raw(agent.pid()), group(agent));
    let (seized, is_seized) = mpsc::channel();
    // All that is done to a traced program must come from one thread.
    let killer = thread::spawn(move || {
        ptrace::seize(lvm, Options::PTRACE_O_TRACESYSGOOD).unwrap();
        ptrace::interrupt(lvm).unwrap();
        seized.send(()).unwrap();
        loop {
            let status = waitpid(lvm, Some(WaitPidFlag::__WALL)).unwrap();
            let signal = match status {
                WaitStatus::Stopped(_, signal) => Some(signal),
                WaitStatus::PtraceSyscall(_) => {
                    let registers = ptrace::getregs(lvm).unwrap();
                    let is_its = (registers.rsi >> 8) & 0xff == DEVICE_MAPPER;
                    if registers.orig_rax == IOCTL && is_its && is_met(&record(&group)) {
                        break;
                    }
                    None
                }
                WaitStatus::PtraceEvent(..) => None,
                other => panic!("{other:?}"),
            };
            ptrace::syscall(lvm, signal).unwrap();
        }
        kill(of, Signal::SIGKILL).unwrap();
        kill(lvm, Signal::SIGKILL).unwrap();
    });
    is_seized.recv().unwrap();
    let request = tokio::spawn(request);
    let ended = tokio::task::spawn_blocking(|| killer.join());
    let ended = within(SLOW, "the call at which LVM is killed", ended).await;
    ended.unwrap().unwrap();
    agent.kill();
    let _ = request.await;
}

/// The volumes of a group, each with what it is, by what is written on the disks.
fn record(group: &str) -> String {
    lvm(
        "lvs",
        &["--readonly", "--noheadings", "-o", "lv_attr,lv_name", group],
    )
}

#[tokio::test]
async fn a_second_snapshot_without_its_devices_is_not_there() {
    if Volumes::asked() != Volumes::Thin {
        return does_not_apply!("it asks for its volumes itself");
    }
    let mut agent = thick(256, "snapshotSize: 100%").await;
    let id = volume(&agent, "v", 16, &raw()).await;
    let device = bytes_of(&agent, &id);
    let write = |byte: u8| {
        let device = File::options().write(true).open(&device).unwrap();
        device.write_all_at(&[byte; 4096], 0).unwrap();
        device.sync_all().unwrap();
    };
    ok(agent
        .controller()
        .create_snapshot(snapshot("first", &id))
        .await);
    write(1);
    let mut controller = agent.controller();
    let request = snapshot("second", &id);
    let taking = async move { controller.create_snapshot(request).await };
    // Only the record of a snapshot begins so: until it is one it is a plain volume.
    let is_second = |record: &str| {
        record
            .lines()
            .filter(|line| line.trim().starts_with('s'))
            .count()
            == 2
    };
    kill_both(&mut agent, taking, is_second).await;
    agent.restart().await;
    write(2);
    // What there is of it is removed first.
    let taken = loop {
        let request = snapshot("second", &id);
        match agent.controller().create_snapshot(request).await {
            Ok(answer) => break answer.into_inner().snapshot.unwrap(),
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    };
    write(3);
    let request = CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken.snapshot_id),
        ..create("restored", 16, &raw())
    };
    let restored = ok(agent.controller().create_volume(request).await);
    let restored = bytes_of(&agent, &restored.volume.unwrap().volume_id);
    let bytes = fs::read(restored).unwrap();
    assert_ne!(bytes[0], 3, "what was written after it was taken");
}

#[tokio::test]
async fn a_volume_that_lvm_did_not_come_to_wipe_is_made_anew() {
    if Volumes::asked() != Volumes::Thin {
        return does_not_apply!("it asks for its volumes itself");
    }
    for wipe in ["none", "discard", "zero"] {
        let mut agent = thick(256, &format!("wipe: {wipe}")).await;
        // LVM is to be running.
        volume(&agent, "other", 16, &raw()).await;
        let theirs = format!("{}/theirs", group(&agent));
        lvm(
            "lvcreate",
            &["-l", "100%FREE", "-n", "theirs", &group(&agent)],
        );
        let device = format!("/dev/{theirs}");
        run("mkfs.ext4", &["-q", "-F", &device]);
        let file = File::options()
            .read(true)
            .write(true)
            .open(&device)
            .unwrap();
        let mut head = [0; 4096];
        file.read_exact_at(&mut head, 0).unwrap();
        // Whichever of its extents LVM takes.
        for extent in 1.. {
            if file.write_all_at(&head, extent << 20).is_err() {
                break;
            }
        }
        file.sync_all().unwrap();
        drop(file);
        lvm("lvremove", &["-y", &theirs]);
        let (mut controller, request) = (agent.controller(), create("v", 16, &raw()));
        let making = async move { controller.create_volume(request).await };
        kill_both(&mut agent, making, |record| {
            record.matches("dl-v-").count() == 2
        })
        .await;
        agent.restart().await;
        let id = volume(&agent, "v", 16, &raw()).await;
        let bytes = fs::read(bytes_of(&agent, &id)).unwrap();
        assert!(bytes[1024..4096] != head[1024..], "wipe: {wipe}");
    }
}

#[tokio::test]
async fn a_snapshot_that_is_split_off_to_be_wiped_goes_all_the_same() {
    if Volumes::asked() != Volumes::Thin {
        return does_not_apply!("it asks for its volumes itself");
    }
    for others in [0, 1] {
        let mut agent = thick(96, "snapshotSize: 100%").await;
        let id = volume(&agent, "v", 16, &raw()).await;
        write_all(&agent, &id, b'D');
        for number in 0..others {
            let other = snapshot(&format!("other-{number}"), &id);
            ok(agent.controller().create_snapshot(other).await);
        }
        let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
        write_all(&agent, &id, b'E');
        let request = delete_snapshot(&ok(taken).snapshot.unwrap().snapshot_id);
        let mut controller = agent.controller();
        let deleting = async move { controller.delete_snapshot(request).await };
        let is_split = move |record: &str| {
            let snapshots = record.lines().filter(|line| line.trim().starts_with('s'));
            snapshots.count() == others
        };
        kill_both(&mut agent, deleting, is_split).await;
        agent.restart().await;
        eventually(|| names(&agent), |names| names.len() == 1 + others).await;
        assert_devices_work(&group(&agent));
        assert!(!is_left(&agent), "{others} other snapshots");
    }
}

/// The semaphores by which device-mapper's programs wait for udevd, by their numbers.
fn cookies() -> Vec<String> {
    let text = fs::read_to_string("/proc/sysvipc/sem").unwrap();
    let rows = text.lines().skip(1).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].parse::<i32>().unwrap(), words[1].to_owned())
    });
    let ours = rows.filter(|(key, _)| key >> 16 == 0x0d4d);
    ours.map(|(_, number)| number).collect()
}

#[tokio::test]
async fn the_udev_cookie_of_a_killed_lvm_is_removed_and_that_of_a_living_one_stays() {
    /// The agent looks every 50 ms.
    const MANY_LOOKS: Duration = Duration::from_secs(1);
    if !has_udevd() {
        return does_not_apply!("there is no udevd");
    }
    let mut agent = thick(256, "layout: linear").await;
    let looks = ("DRUMLIN_TIME_LAPSE".to_owned(), "12000".to_owned());
    let options = AgentOptions {
        environment: vec![looks],
        ..AgentOptions::default()
    };
    agent.kill();
    agent.restart_with(options).await;
    // What other tests have left.
    eventually(cookies, Vec::is_empty).await;
    // LVM is to be running.
    volume(&agent, "other", 16, &raw()).await;
    let (mut controller, request) = (agent.controller(), create("v", 16, &raw()));
    let making = async move { controller.create_volume(request).await };
    let has_one = |_: &str| {
        let before = cookies();
        if before.is_empty() {
            return false;
        }
        thread::sleep(MANY_LOOKS);
        assert_eq!(cookies(), before, "LVM lives");
        true
    };
    kill_both(&mut agent, making, has_one).await;
    let left = cookies();
    assert_eq!(left.len(), 1, "LVM has left none");
    // As a program that is not seen from here.
    let lock = File::create("/run/lock/lvm/V_of-another-program").unwrap();
    let lock = Flock::lock(lock, FlockArg::LockShared).unwrap();
    agent.restart().await;
    thread::sleep(MANY_LOOKS);
    assert_eq!(cookies(), left, "a program of LVM's may need it");
    drop(lock);
    eventually(cookies, Vec::is_empty).await;
    let log = agent.log();
    assert!(
        log.contains("udev cookie of a killed program removed"),
        "{log}"
    );
    volume(&agent, "v", 16, &raw()).await;
}
