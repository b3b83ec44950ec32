//! dmeventd as systemd runs it grows a thin pool and the store of a snapshot at 70 %, beside the agent.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
};

use drumlin_tests::{
    requests::{delete, delete_snapshot, raw, snapshot, stage, unstage},
    storage::lvm,
};

use crate::{
    unit::{processes, property, until},
    volume::{controller, device, make, node},
};

/// What LVM is told on this host.
pub(crate) const SETTINGS: &str = "activation {
    thin_pool_autoextend_threshold=70
    thin_pool_autoextend_percent=20
    snapshot_autoextend_threshold=70
    snapshot_autoextend_percent=100
}
";
/// The classes of what is monitored, in the group `vg1`.
pub(crate) const CLASSES: &str = "
- {name: small, thin: {volumeGroup: vg1, pool: small, overcommit: 2.0}}
- {name: bulk, thick: {volumeGroup: vg1, snapshotSize: 25%}}
";
const STAGING: &str = "/var/lib/pods/staging/monitored";

/// What dmeventd is to see: it looks every ten seconds.
pub(crate) struct Monitored {
    thin: String,
    thick: String,
    taken: String,
    before: [u64; 2],
}

/// The mebibytes of a logical volume.
fn size(name: &str) -> u64 {
    let words = [
        "--noheadings",
        "--units",
        "m",
        "--nosuffix",
        "-o",
        "lv_size",
    ];
    let shown = lvm("lvs", &[&words[..], &[name]].concat());
    shown.trim().split('.').next().unwrap().parse().unwrap()
}

fn name(path: &Path) -> String {
    path.strip_prefix("/dev").unwrap().to_string_lossy().into()
}

fn write(path: &Path, first: u64, mebibytes: usize) {
    let device = File::options().write(true).open(path).unwrap();
    for number in 0..mebibytes {
        let offset = (first + u64::try_from(number).unwrap()) << 20;
        device.write_all_at(&vec![7; 1 << 20], offset).unwrap();
    }
    device.sync_all().unwrap();
}

impl Monitored {
    /// Writes so much that a pool and a store are more than 70 % full.
    pub(crate) async fn begin() -> Self {
        let thin = make("small", "thin", 96, &raw()).await;
        let thick = make("bulk", "thick", 64, &raw()).await;
        for id in [&thin, &thick] {
            let staging = format!("{STAGING}-{}", id.rsplit('/').next().unwrap());
            fs::create_dir_all(&staging).unwrap();
            let request = stage(id, &staging, &raw());
            node().node_stage_volume(request).await.unwrap();
        }
        let request = snapshot("taken", &thick);
        let taken = controller().create_snapshot(request).await.unwrap();
        let taken = taken.into_inner().snapshot.unwrap().snapshot_id;
        let store = name(&device("vg1", 's', &taken));
        let before = [size("vg1/small"), size(&store)];
        write(&device("vg1", 'v', &thin), 0, 52);
        write(&device("vg1", 'v', &thick), 0, 13);
        Self {
            thin,
            thick,
            taken,
            before,
        }
    }

    /// Waits until both have grown, and writes more than would have fitted before.
    pub(crate) async fn check(self) {
        assert_eq!(property("dm-event.service", "ActiveState"), "active");
        let comm = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let ours: Vec<String> = processes().into_iter().map(comm).collect();
        assert!(!ours.iter().any(|name| name == "dmeventd\n"), "{ours:?}");

        let taken = device("vg1", 's', &self.taken);
        let store = name(&taken);
        until("dmeventd grows nothing", async || {
            let now = [size("vg1/small"), size(&store)];
            let mut pairs = now.iter().zip(self.before);
            pairs.all(|(now, before)| *now > before).then_some(())
        })
        .await;
        write(&device("vg1", 'v', &self.thin), 52, 13);
        write(&device("vg1", 'v', &self.thick), 16, 10);
        let invalid = ["--noheadings", "-o", "lv_snapshot_invalid", &store];
        assert_eq!(lvm("lvs", &invalid).trim(), "");
        let mut first = [1; 8];
        File::open(taken)
            .unwrap()
            .read_exact_at(&mut first, 0)
            .unwrap();
        assert_eq!(first, [0; 8], "the snapshot has what was written later");

        let request = delete_snapshot(&self.taken);
        controller().delete_snapshot(request).await.unwrap();
        for id in [&self.thin, &self.thick] {
            let staging = format!("{STAGING}-{}", id.rsplit('/').next().unwrap());
            let request = unstage(id, &staging);
            node().node_unstage_volume(request).await.unwrap();
            controller().delete_volume(delete(id)).await.unwrap();
        }
    }
}
