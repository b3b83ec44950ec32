//! A control group whose processes read slowly from one device.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::programs::{program, run};

/// It is removed when this value is dropped; nothing may be left in it then.
#[derive(Debug)]
pub struct SlowReads {
    group: PathBuf,
    device: PathBuf,
}

/// Where a hierarchy of control groups is mounted, by the type of the mount and one of its options.
fn hierarchy(fs_type: &str, option: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect());
    mounts.find_map(|fields: Vec<&str>| match fields.as_slice() {
        [_, target, kind, options, ..]
            if *kind == fs_type && options.split(',').any(|one| one == option) =>
        {
            Some(PathBuf::from(target))
        }
        _ => None,
    })
}

impl SlowReads {
    /// One read of a block device each second.
    ///
    /// # Panics
    /// When control groups cannot be used.
    pub fn of(device: &Path, name: &str) -> Self {
        let number = run("lsblk", &["-dno", "MAJ:MIN", &device.to_string_lossy()]);
        let number = number.trim();
        let (group, limit) = if let Some(root) = hierarchy("cgroup", "blkio") {
            let limit = ("blkio.throttle.read_iops_device", format!("{number} 1"));
            (root.join(name), limit)
        } else {
            let root = hierarchy("cgroup2", "rw").expect("control groups are mounted");
            fs::write(root.join("cgroup.subtree_control"), "+io").expect("io can be limited");
            (root.join(name), ("io.max", format!("{number} riops=1")))
        };
        fs::create_dir(&group).expect("a control group can be made");
        fs::write(group.join(limit.0), limit.1).expect("reads can be limited");
        Self {
            group,
            device: device.to_owned(),
        }
    }

    /// Adds a process.
    ///
    /// # Panics
    /// When that fails.
    pub fn add(&self, pid: i32) {
        let joined = fs::write(self.group.join("cgroup.procs"), pid.to_string());
        joined.expect("a process can be moved");
    }

    /// Uses up the read that would be done at once: the next one waits.
    ///
    /// # Panics
    /// When that fails.
    pub fn spend(&self) {
        let script = "echo $$ > \"$1\"/cgroup.procs && exec dd if=\"$2\" of=/dev/null bs=4k count=1 iflag=direct status=none";
        let spent = program("sh")
            .args(["-c", script, "sh"])
            .args([&self.group, &self.device])
            .status();
        assert!(spent.expect("a shell can be started").success());
    }
}

impl Drop for SlowReads {
    fn drop(&mut self) {
        // A process that has just ended may still be there.
        for _ in 0..200 {
            if fs::remove_dir(&self.group).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
