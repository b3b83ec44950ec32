//! What a kernel has written, while its pool is in use.

use std::{fs::File, os::unix::fs::FileExt, path::PathBuf};

use super::{
    model::{Map, Random, compare, differing, number},
    tools::{delta, dump},
};
use crate::{
    Kind, ThinMetadata, ThinView,
    host::testing::run,
    testing::{Lab, lvm},
};

/// A pool in use: a device with snapshots of several instants.
struct Pool {
    lab: Lab,
    random: Random,
    /// The names of its devices; their numbers begin with 1.
    devices: Vec<String>,
}

/// The number of blocks of a device.
const BLOCKS: u64 = 4096;

impl Pool {
    fn new() -> Self {
        let lab = Lab::new(1, 1800);
        lab.pool("pool", 1500);
        let pool = format!("{}/pool", lab.group);
        lvm("lvcreate", &["-V", "256M", "-T", &pool, "-n", "thin1"]);
        Self {
            lab,
            random: Random(3),
            devices: vec!["thin1".to_owned()],
        }
    }

    fn snapshot(&mut self, of: &str) {
        let name = format!("thin{}", self.devices.len() + 1);
        let origin = format!("{}/{of}", self.lab.group);
        lvm("lvcreate", &["-s", "-kn", "-n", &name, &origin]);
        lvm("lvchange", &["-ay", &format!("{}/{name}", self.lab.group)]);
        self.devices.push(name);
    }

    /// Writes into so many blocks of a part of a device, in random order.
    fn write(&mut self, name: &str, part: std::ops::Range<u64>, count: u64) {
        let path = format!("/dev/{}/{name}", self.lab.group);
        let device = File::options().write(true).open(path).unwrap();
        for _ in 0..count {
            let block = part.start + self.random.below(part.end - part.start);
            device.write_all_at(&[1; 4096], block << 16).unwrap();
        }
        device.sync_all().unwrap();
    }

    fn discard(&self, name: &str, part: std::ops::Range<u64>) {
        let path = format!("/dev/{}/{name}", self.lab.group);
        let offset = (part.start << 16).to_string();
        let length = ((part.end - part.start) << 16).to_string();
        run("blkdiscard", &["-o", &offset, "-l", &length, &path]);
    }

    /// The path of one of the pool's devices, as device-mapper names it.
    fn mapped(&self, name: &str) -> String {
        format!("/dev/mapper/{}-{name}", self.lab.group.replace('-', "--"))
    }

    fn message(&self, message: &str) {
        run(
            "dmsetup",
            &["message", &self.mapped("pool-tpool"), "0", message],
        );
    }
}

#[test]
fn what_a_kernel_has_mapped_is_found_while_the_pool_is_in_use() {
    let mut pool = Pool::new();
    pool.write("thin1", 0..BLOCKS, 3000);
    pool.snapshot("thin1");
    pool.write("thin1", 500..900, 200);
    pool.discard("thin1", 2000..2300);
    pool.snapshot("thin1");
    pool.write("thin3", 0..BLOCKS, 40);
    pool.discard("thin3", 0..1000);
    pool.snapshot("thin3");
    pool.write("thin2", 3000..4000, 100);
    let path = PathBuf::from(pool.mapped("pool_tmeta"));
    let view = ThinView::MetadataSnapshot;
    let error = ThinMetadata::open(&path, view).unwrap_err();
    assert_eq!(error.kind(), Kind::Precondition, "{error:?}");
    pool.message("reserve_metadata_snap");
    let metadata = ThinMetadata::open(&path, view).unwrap();
    let count = pool.devices.len();
    let maps: Vec<Map> = (0..count)
        .map(|at| dump(&["-m"], &path, number(at)))
        .collect();
    assert!(maps.iter().all(|map| map.len() > 1000));
    // What is written meanwhile is not seen.
    pool.write("thin1", 0..BLOCKS, 300);
    pool.discard("thin4", 0..BLOCKS);
    for from in [0, 600, 2100, 4000, BLOCKS] {
        compare(&path, view, &maps, from);
    }
    for (base, target) in [(0, 1), (1, 0), (0, 2), (2, 3), (1, 3)] {
        let found = delta(&["-m"], &path, number(base), number(target));
        // Nothing was written into the last two since one was made of the other.
        assert_eq!(found.is_empty(), (base, target) == (2, 3));
        assert_eq!(found, differing(&maps[base], &maps[target], 0));
    }
    metadata.verify_unchanged().unwrap();
    pool.message("release_metadata_snap");
    let error = metadata.verify_unchanged().unwrap_err();
    // None is there any more.
    assert_eq!(error.kind(), Kind::Busy, "{error:?}");
    pool.message("reserve_metadata_snap");
    let error = metadata.verify_unchanged().unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{error:?}");
    pool.message("release_metadata_snap");
    drop(metadata);
    // Once the pool is not active, what was committed last is all there is; its metadata is a volume of its own then.
    let group = pool.lab.group.clone();
    lvm("vgchange", &["-an", &group]);
    lvm("lvchange", &["-y", "-ay", &format!("{group}/pool_tmeta")]);
    let now: Vec<Map> = (0..count).map(|at| dump(&[], &path, number(at))).collect();
    assert!(now[3].is_empty() && now[0] != maps[0]);
    compare(&path, ThinView::LastCommit, &now, 0);
    lvm("vgchange", &["-an", &group]);
}
