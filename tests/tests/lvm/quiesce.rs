//! Snapshots of volumes whose unwritten data fills their pool: whoever has to give the pool more must not wait for the agent.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::Agent,
    programs::run,
    requests::{mounted, raw, snapshot},
    storage::lvm,
};
use nix::sys::signal::Signal;
use tokio::task::JoinHandle;
use tonic::Status;

use crate::{
    full::KERNEL_WAITS,
    group_consistency::Load,
    group_snapshots::together,
    groups::{group, stop_at, thick, thin, within},
    helpers::{bytes_of, get, mount, ok, put, unmount, volume},
    thaw_watchdog::until_stopped,
};

/// So long the kernel lets writers of the full pool wait before their writes fail.
const NO_SPACE_TIMEOUT: Duration = Duration::from_secs(6);
/// The page cache holds so many bytes, which the pool has no room for.
const DIRTY: usize = 150 << 20;

/// From so much of its memory in hundredths on the kernel writes back what is not synced.
const WRITEBACK: &str = "/proc/sys/vm/dirty_background_ratio";
/// With so much of its memory in hundredths to be written back it has writers wait.
const WRITEBACK_WAITS: &str = "/proc/sys/vm/dirty_ratio";

/// Has the kernel write nothing back by itself, until this is dropped: then whoever syncs fills the pool.
struct NoWriteback([(&'static str, String); 2]);

impl NoWriteback {
    fn begin() -> Self {
        let set = |path: &'static str, value: &str| {
            let former = fs::read_to_string(path).unwrap();
            fs::write(path, value).unwrap();
            (path, former)
        };
        // In this order: the other one is always more.
        Self([set(WRITEBACK_WAITS, "90"), set(WRITEBACK, "80")])
    }
}

impl Drop for NoWriteback {
    fn drop(&mut self) {
        for (path, former) in self.0.iter().rev() {
            let _ = fs::write(path, former);
        }
    }
}

/// A snapshot that is asked for, and what comes of it.
type Asked = JoinHandle<Result<(), Status>>;

/// Asks for a snapshot while the page cache holds more than the pool can take, and gives the pool more once it is full.
async fn lvextend_saves_the_writers(fs_type: &str, ask: impl Fn(&Agent, &str) -> Asked) {
    fs::write(KERNEL_WAITS, NO_SPACE_TIMEOUT.as_secs().to_string()).unwrap();
    let agent = thin(400, &["-L", "400M"], "overcommit: 10").await;
    let capability = mounted(fs_type);
    let id = volume(&agent, "v", 400, &capability).await;
    let at = mount(&agent, "v", &id, &capability).await;
    put(&at.1, "kept", b"precious");
    // With what the file system needs for itself this is four fifths of the pool.
    let used = if fs_type == "xfs" { 250 } else { 300 };
    let ballast = volume(&agent, "ballast", used, &raw()).await;
    let device = File::options().write(true).open(bytes_of(&agent, &ballast));
    let mut device = device.unwrap();
    let used = usize::try_from(used).unwrap() << 20;
    device.write_all(&vec![7; used]).unwrap();
    device.sync_all().unwrap();

    let _writeback = NoWriteback::begin();
    let path = Path::new(&at.1).join("big");
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![8; DIRTY]).unwrap();
    let snapshot = ask(&agent, &id);
    let pool = group(&agent).replace('-', "--") + "-pool-tpool";
    // LVM itself may have to wait for the agent, which is what is measured.
    let is_full = || run("dmsetup", &["status", "--noflush", &pool]).contains("out_of_data");
    within(Duration::from_mins(1), "a full pool", async {
        while !is_full() {
            assert!(!snapshot.is_finished(), "the pool is not filled");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let full = Instant::now();
    let path = format!("{}/pool", group(&agent));
    let extend = move || lvm("lvextend", &["-L", "+300M", &path]);
    tokio::task::spawn_blocking(extend).await.unwrap();
    let took = full.elapsed();
    assert!(
        took < NO_SPACE_TIMEOUT,
        "lvextend waited for the agent: {took:?}\n{}",
        agent.log()
    );
    within(Duration::from_mins(1), "the snapshot", snapshot)
        .await
        .unwrap()
        .unwrap();
    file.sync_all().unwrap();
    drop(file);
    // What is read is on the disk.
    unmount(&agent, &id, &at).await;
    let at = mount(&agent, "v", &id, &capability).await;
    assert_eq!(get(&at.1, "kept"), b"precious");
    let big = get(&at.1, "big");
    assert!(big.len() == DIRTY && big.iter().all(|byte| *byte == 8));
    unmount(&agent, &id, &at).await;
}

fn ask_for_a_group_snapshot(agent: &Agent, id: &str) -> Asked {
    let (mut groups, request) = (agent.group_controller(), together("g", &[id.to_owned()]));
    tokio::spawn(async move {
        let answer = groups.create_volume_group_snapshot(request).await;
        answer.map(drop)
    })
}

fn ask_for_a_snapshot(agent: &Agent, id: &str) -> Asked {
    let (mut controller, request) = (agent.controller(), snapshot("s", id));
    tokio::spawn(async move { controller.create_snapshot(request).await.map(drop) })
}

#[tokio::test(flavor = "multi_thread")]
async fn lvextend_saves_ext4_while_a_group_snapshot_fills_its_pool() {
    lvextend_saves_the_writers("ext4", ask_for_a_group_snapshot).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lvextend_saves_xfs_while_a_group_snapshot_fills_its_pool() {
    lvextend_saves_the_writers("xfs", ask_for_a_group_snapshot).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lvextend_saves_ext4_while_a_snapshot_fills_its_pool() {
    lvextend_saves_the_writers("ext4", ask_for_a_snapshot).await;
}

/// Writers wait for longer than the second that is usual, and neither the agent nor the watchdog ends that.
async fn has_writers_wait_for_as_long_as_its_class_says(mut agent: Agent) {
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        ids.push(volume(&agent, name, 16, &raw()).await);
    }
    stop_at(&mut agent, "quiesce.held").await;
    let load = Load::over_raw(agent, &ids).await;
    let (mut groups, request) = (load.agent.group_controller(), together("g", &ids));
    let mut call = tokio::spawn(async move { groups.create_volume_group_snapshot(request).await });
    until_stopped(&load.agent, &mut call).await;
    let held = load.writers[0].acknowledged();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(load.writers[0].acknowledged(), held, "they go on");
    load.agent.signal(Signal::SIGCONT);
    let taken = ok(call.await.unwrap()).group_snapshot.unwrap();
    assert_eq!(taken.snapshots.len(), ids.len());
    load.writers[0].goes_on(3);
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thin_class_has_writers_wait_for_as_long_as_it_says() {
    let agent = thin(200, &["-L", "300M"], "overcommit: 10, longestFreeze: 60").await;
    has_writers_wait_for_as_long_as_its_class_says(agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thick_class_has_writers_wait_for_as_long_as_it_says() {
    let agent = thick(200, "longestFreeze: 60").await;
    has_writers_wait_for_as_long_as_its_class_says(agent).await;
}
