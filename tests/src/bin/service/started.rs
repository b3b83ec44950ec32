//! Starts, restarts, kills and stops of the service while its mounts are in use.

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{CreateVolumeGroupSnapshotRequest, VolumeGroupSnapshot};
use drumlin_tests::{
    agent::PATIENCE,
    programs::{output, program, run},
    requests::{create_group_snapshot, delete_group_snapshot, expand, mounted, node_expand},
    sequence::Writer,
    storage::{lvm, mounts_below},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    monitored::{self, Monitored},
    say, step,
    unit::{
        self, End, answers, main_pid, processes, replaced, restart_until, systemctl, until,
        watchdog_of,
    },
    volume::{Used, controller, device, groups, make, node},
};

/// What an order of an administrator may take.
const PROMPT: Duration = Duration::from_secs(8);

/// So long writers may be held that the thaw watchdog lets go on; the next start would need some seconds.
const OUTLIVED: Duration = Duration::from_secs(1);
/// After so many seconds without a word systemd takes the agent for hung.
const WATCHDOG: u32 = 3;

/// The groups, the settings, and the unit.
pub(crate) fn install() {
    let local = "/etc/lvm/lvmlocal.conf";
    let before = fs::read_to_string(local).unwrap();
    fs::write(local, before + monitored::SETTINGS).unwrap();
    lvm("vgcreate", &["vg0", "/dev/ubdb"]);
    lvm("vgcreate", &["-s", "1M", "vg1", "/dev/ubdc"]);
    lvm("lvcreate", &["-L", "64M", "-T", "vg1/small"]);
    unit::install("database-host", monitored::CLASSES);
}

/// The example has its volumes mounted, and what dmeventd will see is written.
pub(crate) async fn start() -> Monitored {
    systemctl(&["enable", "--now", "drumlin"]);
    answers().await;
    let monitored = Monitored::begin().await;
    the_example_is_ready().await;
    the_journal_has_fields();
    // What is ordered after the mounts can start, and what has started stays so without the agent.
    systemctl(&["start", "drumlin-mounts.target"]);
    // It waits without capabilities, and may not say what it may not see.
    let told = run("journalctl", &["-b", "--no-pager", "-u", "drumlin-mounts"]);
    assert!(!told.contains("no reconciler runs"), "{told}");
    monitored
}

/// What became of an object is found by its kind and the reason.
fn the_journal_has_fields() {
    let fields = ["DRUMLIN_KIND=Volume", "DRUMLIN_REASON=Published"];
    let words = ["-b", "--no-pager", "-o", "cat", "-u", "drumlin"];
    let lines = run("journalctl", &[&words[..], &fields].concat());
    let mut lines = lines.lines();
    assert!(lines.clone().count() >= 4, "{lines:?}");
    assert!(
        lines.all(|line| line.starts_with("object is ready object=Volume/")),
        "{lines:?}"
    );
}

/// All objects of the example are what they should be, on mounts that everybody sees. What is told of them may be from
/// before a start; the mounts are from after it.
pub(crate) async fn the_example_is_ready() {
    let mounts = until("the example's objects are not ready", async || {
        let mounts = mounts_below("/mnt");
        let status = output("/usr/bin/drumlin", &["status"]).status;
        (mounts.len() == 4 && status.success()).then_some(mounts)
    })
    .await;
    let seen = run("findmnt", &["--task", "1", "-rno", "TARGET"]);
    for mount in mounts {
        assert!(seen.lines().any(|line| line == mount), "{mount}: {seen}");
    }
}

/// Two ext4 volumes of callers, with a writer to both; the processes that `kills` names are killed while it is held.
pub(crate) async fn use_it(kills: &[&str]) {
    let capability = mounted("ext4");
    let mut used = Vec::new();
    for name in ["a", "b"] {
        let id = make("fast", name, 64, &capability).await;
        used.push(Used::new(&id, name, &capability).await);
    }
    let places: Vec<_> = used.iter().map(Used::place).collect();
    let writer = Writer::start(1, &places).unwrap();
    let mounts = || used.iter().flat_map(Used::mounts).collect::<Vec<_>>();
    let before = mounts();
    assert_eq!(before.len(), 4, "{before:?}");
    // Everything is as it was, and found again.
    let is_whole = async || {
        writer.goes_on(20);
        for used in &used {
            used.again().await;
        }
        assert_eq!(mounts(), before);
    };
    step("grown", grown(&used[0])).await;
    for whom in kills {
        let killed = killed_while_writers_are_held(&used, &writer, whom);
        step("killed while writers are held", killed).await;
        is_whole().await;
    }
    step("stopped", stopped(&writer)).await;
    is_whole().await;
    step("hung", hung(&writer)).await;
    is_whole().await;

    writer.stop().unwrap();
    for used in used {
        used.leave().await;
        let bytes = device("vg0", 'v', &used.id);
        let bytes = bytes.to_string_lossy();
        lvm("lvchange", &["-ay", "-K", &bytes]);
        run("e2fsck", &["-fn", &bytes]);
        lvm("lvchange", &["-an", &bytes]);
        used.delete().await;
    }
}

fn systemctl_soon(words: &[&str]) {
    let begun = Instant::now();
    systemctl(words);
    let took = begun.elapsed();
    assert!(took < PROMPT, "systemctl {words:?} took {took:?}");
}

/// ext4 grows while it is mounted, under a writer and a program that reads and writes files.
async fn grown(used: &Used) {
    let bytes: Vec<u8> = (0..24_u32 << 18).flat_map(u32::to_le_bytes).collect();
    fs::write(used.path("before"), &bytes).unwrap();
    let mut copying = program("cp");
    let copying = copying.arg(used.path("before")).arg(used.path("during"));
    let mut copying = copying.stdout(Stdio::null()).spawn().unwrap();
    let size = used.size().await;
    let request = expand(&used.id, 160);
    let grown = controller().controller_expand_volume(request).await;
    let grown = grown.unwrap().into_inner();
    assert!(grown.node_expansion_required);
    let request = node_expand(&used.id, &used.target);
    let at_node = node().node_expand_volume(request).await.unwrap();
    assert_eq!(at_node.into_inner().capacity_bytes, grown.capacity_bytes);
    assert!(copying.wait().unwrap().success());
    let now = used.size().await;
    assert!(now > size + 80, "{size} MiB became {now} MiB");
    // More than it had room for.
    fs::write(used.path("after"), &bytes).unwrap();
    run("sync", &["-f", &used.target]);
    for name in ["before", "during", "after"] {
        let read = fs::read(used.path(name)).unwrap();
        assert!(read == bytes, "{name} is not what was written");
    }
}

fn together(used: &[Used]) -> CreateVolumeGroupSnapshotRequest {
    create_group_snapshot(
        "together",
        used.iter().map(|used| used.id.clone()).collect(),
    )
}

/// Asks until it is answered: what was interrupted has to be undone first, and a busy machine does not always hold
/// everybody in time.
async fn insist(request: CreateVolumeGroupSnapshotRequest) -> VolumeGroupSnapshot {
    let deadline = Instant::now() + 3 * PATIENCE;
    loop {
        match groups().create_volume_group_snapshot(request.clone()).await {
            Ok(answer) => return answer.into_inner().group_snapshot.unwrap(),
            Err(status) => assert!(Instant::now() < deadline, "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The agent is restarted, and killed just when it holds all writers: systemd ends what it has started, and starts it again.
/// With `all` its thaw watchdog is killed with it, and only the next start can let writers go on.
async fn killed_while_writers_are_held(used: &[Used], writer: &Writer, whom: &str) {
    let former = main_pid();
    restart_until("quiesce.held", End::Stopped).await;
    writer.goes_on(20);
    let killed = main_pid();
    assert_ne!(killed, former);
    let asked = tokio::spawn(insist(together(used)));
    until("the agent does not stop", async || {
        let stat = fs::read_to_string(format!("/proc/{killed}/stat")).ok()?;
        stat.contains(") T ").then_some(())
    })
    .await;
    let mut processes = processes();
    writer.longest();
    if whom == "all" {
        // It would see the end of the agent, and be faster than systemd.
        kill(Pid::from_raw(watchdog_of(killed).unwrap()), Signal::SIGSTOP).unwrap();
        let held = writer.acknowledged();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(writer.acknowledged(), held, "writers are not held");
    }
    let option = format!("--kill-whom={whom}");
    systemctl(&["kill", "-s", "KILL", &option, "drumlin"]);
    writer.goes_on(20);
    let longest = writer.longest();
    say(&format!("killed {whom}: held for {longest:?}"));
    // The thaw watchdog is not killed with the agent.
    assert!(whom == "all" || longest < OUTLIVED, "held for {longest:?}");
    replaced(killed).await;
    processes.retain(|pid| Path::new(&format!("/proc/{pid}")).exists());
    assert!(
        processes.is_empty(),
        "{processes:?} of the former agent run"
    );
    let taken = asked.await.unwrap();
    assert!(
        taken.ready_to_use && taken.snapshots.len() == 2,
        "{taken:?}"
    );
    writer.goes_on(20);
    let request = delete_group_snapshot(&taken);
    groups()
        .delete_volume_group_snapshot(request)
        .await
        .unwrap();
}

/// What is stopped leaves no process, and all mounts; what is reloaded goes on.
async fn stopped(writer: &Writer) {
    let before = mounts_below("/");
    systemctl_soon(&["stop", "drumlin"]);
    assert!(processes().is_empty(), "{:?}", processes());
    assert_eq!(unit::property("drumlin", "Result"), "success");
    assert_eq!(mounts_below("/"), before);
    writer.goes_on(20);
    systemctl_soon(&["start", "drumlin"]);
    answers().await;
    let started = main_pid();
    // It waits until everything is read.
    systemctl(&["reload", "drumlin"]);
    answers().await;
    assert_eq!(main_pid(), started, "SIGHUP ended it");
    until("the reload is not told", async || {
        let status = unit::property("drumlin", "StatusText");
        (status == "configuration read again").then_some(())
    })
    .await;
    assert_eq!(unit::property("drumlin", "ActiveState"), "active");
    assert_eq!(
        unit::property("drumlin-mounts.target", "ActiveState"),
        "active"
    );
}

/// One that hangs is started again, and one that only is idle is not.
async fn hung(writer: &Writer) {
    unit::restart_with_watchdog(Some(WATCHDOG)).await;
    let idle = main_pid();
    tokio::time::sleep(Duration::from_secs(u64::from(3 * WATCHDOG))).await;
    assert_eq!(main_pid(), idle, "it answers, and is killed");
    kill(Pid::from_raw(idle), Signal::SIGSTOP).unwrap();
    replaced(idle).await;
    writer.goes_on(20);
    unit::restart_with_watchdog(None).await;
}
