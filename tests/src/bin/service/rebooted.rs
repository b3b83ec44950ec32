//! A reboot while mounts are in use, and what is there afterwards.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use drumlin_proto::csi::v1::ListVolumesRequest;
use drumlin_tests::{
    programs::{run, workspace},
    requests::mounted,
    storage::{lvm, mounts_below},
};

use crate::{
    say,
    started::the_example_is_ready,
    unit::{answers, property, systemctl, until},
    volume::{Used, controller, make},
};

/// When the reboot was asked for.
pub(crate) const ASKED: &str = "/var/lib/reboot-asked";
/// A boot that begins later was held up by a mount that is in use, or by the agent: what is asked to stop has 90 s.
const PROMPT: Duration = Duration::from_secs(20);
/// What the database of the example has written.
const DATABASE: &str = "/mnt/db/data/written";

/// Sets up a database on the example's mounts that starts by itself, and users of a published volume.
pub(crate) async fn prepare() {
    let units = Path::new("/etc/systemd/system");
    let writes = "n=0; while echo $((n += 1)) >> /mnt/db/data/written; do sync -d /mnt/db/data/written; sleep 0.05; done";
    let service = format!(
        "[Service]\nExecStart=/bin/sh -c '{}'\n[Install]\nWantedBy=multi-user.target\n",
        writes.replace('$', "$$")
    );
    fs::write(units.join("database.service"), service).unwrap();
    let drop_ins = units.join("database.service.d");
    fs::create_dir(&drop_ins).unwrap();
    let mounts = workspace().join("examples/database-host/mounts.conf");
    fs::write(drop_ins.join("mounts.conf"), fs::read(mounts).unwrap()).unwrap();
    systemctl(&["enable", "--now", "database"]);

    let capability = mounted("ext4");
    let id = make("fast", "kept", 64, &capability).await;
    let used = Used::new(&id, "kept", &capability).await;
    fs::write(used.path("kept"), b"kept").unwrap();
    run("sync", &["-f", &used.target]);
    // One that is stopped beside the mounts, in no order, and one that nothing stops before the end of everything.
    for mode in ["control-group", "none"] {
        let writes = format!(
            "exec 9>> {}; while echo x >&9; do sleep 0.05; done",
            used.path(mode).display()
        );
        let mode = format!("KillMode={mode}");
        run("systemd-run", &["-q", "-p", &mode, "sh", "-c", &writes]);
    }
    for mode in ["control-group", "none"] {
        grows(&used.path(mode)).await;
    }
    grows(Path::new(DATABASE)).await;
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    fs::write(ASKED, now.to_string()).unwrap();
    run("sync", &["-f", ASKED]);
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

async fn grows(path: &Path) {
    let before = length(path);
    let what = format!("nobody writes {}", path.display());
    until(&what, async || (length(path) > before).then_some(())).await;
}

/// After the next boot.
pub(crate) async fn check() {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let up = fs::read_to_string("/proc/uptime").unwrap();
    let up: f64 = up.split(' ').next().unwrap().parse().unwrap();
    let asked: u64 = fs::read_to_string(ASKED).unwrap().parse().unwrap();
    let took = now.saturating_sub(Duration::from_secs_f64(up) + Duration::from_millis(asked));
    say(&format!("the machine went down in {took:?}"));
    assert!(took < PROMPT, "the machine went down in {took:?}");

    // By itself: the agent, the example's mounts, and then the database on them.
    answers().await;
    until("the database does not start", async || {
        (property("database", "ActiveState") == "active").then_some(())
    })
    .await;
    the_example_is_ready().await;
    grows(Path::new(DATABASE)).await;
    let lines = fs::read_to_string(DATABASE).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    let starts = lines.iter().filter(|line| **line == "1").count();
    assert_eq!(starts, 2, "{lines:?}");
    // What is below the mounts was never written.
    systemctl(&["stop", "database"]);
    systemctl(&["stop", "drumlin"]);
    for mount in mounts_below("/mnt") {
        run("umount", &[&mount]);
    }
    assert_eq!(length(Path::new(DATABASE)), 0, "written beside the mount");
    systemctl(&["start", "drumlin"]);
    answers().await;
    the_example_is_ready().await;

    let request = ListVolumesRequest::default();
    let listed = controller().list_volumes(request).await.unwrap();
    let listed = listed.into_inner().entries;
    assert_eq!(listed.len(), 5, "{listed:?}");
    let capability = mounted("ext4");
    let id = make("fast", "kept", 64, &capability).await;
    let used = Used::new(&id, "kept", &capability).await;
    assert_eq!(fs::read(used.path("kept")).unwrap(), b"kept");
    for mode in ["control-group", "none"] {
        assert!(length(&used.path(mode)) > 0, "{mode}");
    }
    used.delete().await;
    let failed = systemctl(&["--failed", "--no-legend", "--plain", "--no-pager"]);
    assert_eq!(failed, "");
    // The lab powers off without stopping services, and dmeventd ignores signals while it monitors something.
    lvm("vgchange", &["--monitor", "n"]);
}
