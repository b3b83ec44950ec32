//! Volume groups for tests: on separate loop devices, removed when their value is dropped.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::host::{
    Access, LoopDevice, loop_device,
    testing::{Scratch, run},
};

/// A volume group of a test.
#[derive(Debug)]
pub struct Lab {
    /// Its name.
    pub group: String,
    /// Its disks.
    pub disks: Vec<LoopDevice>,
    _scratch: Scratch,
}

impl Lab {
    /// A group over this number of disks of this size in mebibytes.
    pub fn new(disks: usize, mebibytes: u64) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Set by the test runner: tests must not touch the volume groups of a machine in use.
        assert!(
            std::env::var_os("DRUMLIN_LAB").is_some(),
            "these tests run in tests/lab/vm/run, or with DRUMLIN_LAB=host on a machine of their own"
        );
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let group = format!("drumlin-test-{}-{number}", std::process::id());
        let scratch = Scratch::new();
        let disks: Vec<LoopDevice> = (0..disks)
            .map(|disk| {
                let image = scratch.image(&format!("disk-{disk}"), mebibytes << 20);
                loop_device::attach(&image, Access::ReadWrite).unwrap()
            })
            .collect();
        let paths: Vec<&str> = disks
            .iter()
            .map(|disk| disk.path.to_str().unwrap())
            .collect();
        lvm("pvcreate", &paths);
        lvm("vgcreate", &[&[group.as_str()], paths.as_slice()].concat());
        Self {
            group,
            disks,
            _scratch: scratch,
        }
    }

    /// Creates a thin pool of this size in mebibytes.
    pub fn pool(&self, name: &str, mebibytes: u64) {
        let size = format!("{mebibytes}M");
        lvm(
            "lvcreate",
            &["-L", &size, "-T", &format!("{}/{name}", self.group)],
        );
    }

    /// One reported field of one volume.
    pub fn report(&self, column: &str, volume: &str) -> String {
        let path = format!("{}/{volume}", self.group);
        let text = lvm(
            "lvs",
            &[
                "-a",
                "--noheadings",
                "--units",
                "b",
                "--nosuffix",
                "-o",
                column,
                &path,
            ],
        );
        text.trim().to_owned()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        lvm("vgremove", &["-ff", "-y", &self.group]);
    }
}

/// Runs an LVM command, as an administrator would.
pub fn lvm(command: &str, arguments: &[&str]) -> String {
    run(
        command,
        &[&["-q", "--config", "backup{backup=0 archive=0}"], arguments].concat(),
    )
}
