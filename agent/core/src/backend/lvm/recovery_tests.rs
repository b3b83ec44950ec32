//! Recovery while other tools change the group.

use std::{process::Command as Program, sync::Arc};

use super::*;
use crate::backend::lvm::testing::{Lab, lvm};

fn node() -> NodeName {
    "node-a".parse().unwrap()
}

/// Returns true if a volume is active in the kernel.
async fn is_live(group: &Arc<Group>, name: &str) -> bool {
    let now = group.now().await.unwrap();
    let Some(volume) = now.volumes.get(name) else {
        return false;
    };
    let found = group.mapper().unwrap().find(&now.mapped_uuid(volume));
    found.unwrap().is_some_and(|device| device.is_live)
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "an administrator's program, which goes on meanwhile"
)]
async fn what_moves_a_pool_that_nobody_uses_goes_on() {
    let lab = Lab::new(2, 900);
    let (vg, disk) = (lab.group.as_str(), lab.disks[0].path.to_str().unwrap());
    lvm(
        "lvcreate",
        &["-L", "800M", "-T", &format!("{vg}/pool"), disk],
    );
    lvm("vgchange", &["-an", vg]);
    let group = Group::of(vg);
    let reported = || lvm("vgs", &["--noheadings", "-o", "vg_free_count", vg]);
    let before = reported();
    // It checks for its end right after the start, and then so rarely that this test ends first.
    let mut mover = Program::new("pvmove");
    let mut mover = mover.args(["-q", "-i", "900", disk]).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    // The volume is activated before the change that moves it is committed; the report waits for the commit.
    while reported() == before || !is_live(&group, "lvol0_pmspare").await {
        let is_over = mover.try_wait().unwrap().is_some() || Instant::now() > deadline;
        assert!(!is_over, "nothing is moved");
        thread::sleep(Duration::from_millis(50));
    }
    // Both the source and the destination of the move are in use.
    let now = group.now().await.unwrap();
    let free: drumlin_lvm::Extents = now.disks.values().map(|disk| disk.free).sum();
    assert_eq!(free.to_string(), reported().trim());
    group.ready(&node()).await.unwrap();
    for name in ["lvol0_pmspare", "pvmove0"] {
        assert!(is_live(&group, name).await, "{name}");
    }
    mover.kill().unwrap();
    mover.wait().unwrap();
    lvm("pvmove", &["--abort"]);
}

#[tokio::test]
async fn a_volume_that_comes_with_a_disk_before_the_lock_is_had_keeps_its_device() {
    let lab = Lab::new(2, 100);
    let disk = lab.disks[1].path.to_str().unwrap();
    lvm("vgreduce", &[&lab.group, disk]);
    let group = Group::of(&lab.group);
    let before = group.now().await.unwrap();
    lvm("vgextend", &[&lab.group, disk]);
    lvm("lvcreate", &["-y", "-L", "8M", "-n", "theirs", &lab.group]);
    let (this, of) = (Arc::clone(&group), node());
    blocking(move || this.repair_devices(&before, &of).map(drop))
        .await
        .unwrap();
    assert!(is_live(&group, "theirs").await);
}
