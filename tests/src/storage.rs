//! Scratch directories, and file systems on loop devices; all goes away when its value does.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use tempfile::TempDir;

use crate::programs::{output, run};

/// A directory of a test's own. Everything mounted or attached below it is taken away before it is.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
    groups: Mutex<Vec<String>>,
}

/// The file systems that tests make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// ext4, without reflinks.
    Ext4,
    /// xfs, with reflinks.
    Xfs,
    /// btrfs, with reflinks.
    Btrfs,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// A fresh one, under a short path: sockets have only 107 bytes.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("dt-")
            .tempdir_in("/tmp")
            .expect("a temporary directory can be made");
        Self {
            directory,
            groups: Mutex::default(),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A directory in it.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(&path).expect("a directory can be made");
        path
    }

    /// A new key of 64 random bytes, in a file of this name.
    pub fn key(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        let mut key = [0; 64];
        let random = File::open("/dev/urandom").and_then(|mut from| from.read_exact(&mut key));
        random.expect("there are random bytes");
        fs::write(&path, key).expect("a key can be written");
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&path, mode).expect("a mode can be set");
        path
    }

    /// A new volume group over two disks of so many mebibytes each, with extents of one.
    ///
    /// # Panics
    /// Outside of the lab: the volume groups of a machine that people use are not played with.
    pub fn volume_group(&self, mebibytes: u64) -> String {
        assert!(
            std::env::var_os("DRUMLIN_LAB").is_some(),
            "this runs in tests/lab/vm/run, or with DRUMLIN_LAB=host on a machine of its own"
        );
        let disks = ["disk-a", "disk-b"].map(|disk| self.disk(disk, mebibytes));
        self.volume_group_over(&disks)
    }

    /// A new loop device of so many mebibytes.
    pub fn disk(&self, name: &str, mebibytes: u64) -> String {
        let image = self.path().join(name);
        let file = File::create(&image).expect("a disk can be made");
        file.set_len(mebibytes << 20).expect("a disk can grow");
        let found = run("losetup", &["--find", "--show", &image.to_string_lossy()]);
        found.trim().to_owned()
    }

    /// A new volume group over these disks, with extents of a mebibyte.
    pub fn volume_group_over(&self, disks: &[String]) -> String {
        let name = self.path().file_name().unwrap_or_default();
        let name = name.to_string_lossy().replace('.', "");
        let number = self.groups.lock().map_or(0, |groups| groups.len());
        let name = match number {
            0 => name,
            number => format!("{name}-{number}"),
        };
        let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
        lvm(
            "vgcreate",
            &[&["-s", "1M", &name], disks.as_slice()].concat(),
        );
        self.groups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(name.clone());
        name
    }

    /// The volume groups that were made in it.
    pub fn groups(&self) -> Vec<String> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.clone()
    }

    /// The first volume group that was made in it.
    pub fn group(&self) -> Option<String> {
        self.groups().into_iter().next()
    }

    /// A new file system of `mebibytes` in it, mounted.
    pub fn file_system(&self, name: &str, kind: Kind, mebibytes: u64) -> PathBuf {
        let image = self.path().join(format!("{name}.img"));
        let file = File::create(&image).expect("an image can be made");
        file.set_len(mebibytes << 20).expect("an image can grow");
        let image = image.to_string_lossy().into_owned();
        match kind {
            Kind::Ext4 => run("mkfs.ext4", &["-q", "-F", &image]),
            Kind::Xfs => run("mkfs.xfs", &["-q", "-f", "-m", "reflink=1", &image]),
            Kind::Btrfs => run("mkfs.btrfs", &["-q", "-f", &image]),
        };
        let target = self.directory(name);
        run("mount", &["-o", "loop", &image, &target.to_string_lossy()]);
        target
    }
}

/// Runs one of LVM's commands, as an administrator would.
pub fn lvm(command: &str, arguments: &[&str]) -> String {
    let common = ["-q", "--config", "backup{backup=0 archive=0}"];
    run(command, &[&common, arguments].concat())
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let root = self.path().to_string_lossy().into_owned();
        let groups = self
            .groups
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for group in groups {
            for target in mounts_below(&root).into_iter().rev() {
                output("umount", &[&target]);
            }
            close_mappings(&root, std::slice::from_ref(group));
            take_devices_away(group);
        }
        // Devices of images inside images: what was mounted last goes first, and freeing one lets the next go.
        for _ in 0..4 {
            for target in mounts_below(&root).into_iter().rev() {
                output("fsfreeze", &["--unfreeze", &target]);
                output("umount", &[&target]);
            }
            close_mappings(&root, &[]);
            let devices = images_below(&root);
            if devices.is_empty() && mounts_below(&root).is_empty() {
                break;
            }
            for (device, _) in devices {
                detach_if_below(&device, &root);
            }
        }
        let left = mounts_below(&root);
        if !left.is_empty() {
            eprintln_left(&left);
        }
    }
}

#[expect(clippy::print_stderr, reason = "who runs the tests cleans up by hand")]
fn eprintln_left(left: &[String]) {
    eprintln!(
        "could not clean up; do it by hand: umount {}",
        left.join(" ")
    );
}

/// Takes away the devices of a volume group. Its disks go with the test, so that what is on them may stay: LVM would spend a
/// quarter of a second on each volume.
fn take_devices_away(group: &str) {
    // Those on which others lie go in a later round.
    for _ in 0..8 {
        let devices = devices_of(group);
        if devices.is_empty() {
            // Links that nobody else removes where there is no udevd.
            let _ = fs::remove_dir_all(Path::new("/dev").join(group));
            return;
        }
        let highest = devices.iter().filter(|device| !device.is_held);
        let names = highest.map(|device| device.name.as_str());
        let arguments: Vec<&str> = ["remove", "--noudevsync"]
            .into_iter()
            .chain(names)
            .collect();
        output("dmsetup", &arguments);
    }
    output("vgremove", &["-q", "-ff", "-y", group]);
}

/// Closes the decrypted devices over what lies below `root`, or in a volume group.
fn close_mappings(root: &str, groups: &[String]) {
    let prefixes = groups
        .iter()
        .map(|group| format!("{}-", group.replace('-', "--")));
    let prefixes: Vec<String> = prefixes.collect();
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let block = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    for entry in block {
        let mapping = entry.path();
        if !read(mapping.join("dm/uuid")).starts_with("CRYPT-") {
            continue;
        }
        let below = fs::read_dir(mapping.join("slaves"))
            .into_iter()
            .flatten()
            .flatten();
        let is_ours = below.into_iter().any(|below| {
            let name = read(below.path().join("dm/name"));
            let image = read(below.path().join("loop/backing_file"));
            is_below(&image, root) || prefixes.iter().any(|prefix| name.starts_with(prefix))
        });
        if is_ours {
            let name = read(mapping.join("dm/name"));
            output("dmsetup", &["remove", "--noudevsync", name.trim()]);
        }
    }
}

/// The device of a logical volume.
struct Device {
    name: String,
    /// Whether another one lies on it.
    is_held: bool,
}

/// The devices of a volume group's logical volumes.
fn devices_of(group: &str) -> Vec<Device> {
    let prefix = format!("{}-", group.replace('-', "--"));
    let look = |directory: PathBuf| {
        let name = fs::read_to_string(directory.join("dm/name")).ok()?;
        let holders = fs::read_dir(directory.join("holders"));
        let is_held = holders.is_ok_and(|mut holders| holders.next().is_some());
        let name = name.trim().to_owned();
        // Two hyphens are one of the name of another group.
        let is_of_group = name
            .strip_prefix(&prefix)
            .is_some_and(|rest| !rest.starts_with('-'));
        is_of_group.then_some(Device { name, is_held })
    };
    let block = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    block.filter_map(|entry| look(entry.path())).collect()
}

/// The mount points at `root` or below it, in the order in which they were made.
pub fn mounts_below(root: &str) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|target| is_below(target, root))
        .map(str::to_owned)
        .collect()
}

/// The loop devices whose image is below `root`, each with its image.
fn images_below(root: &str) -> Vec<(String, String)> {
    let look = |entry: fs::DirEntry| {
        let device = format!("/dev/{}", entry.file_name().to_string_lossy());
        let image = image_of(&device)?;
        is_below(&image, root).then_some((device, image))
    };
    let block = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    block.filter_map(look).collect()
}

/// The image of a loop device, if it is in use.
fn image_of(device: &str) -> Option<String> {
    let name = device.trim_start_matches("/dev/");
    let image = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    Some(image.trim().to_owned())
}

/// Detaches a loop device if its image is below `root`. It is held open meanwhile: one that is gone by now gave its name to
/// another test's, perhaps, and that would lose it.
fn detach_if_below(device: &str, root: &str) {
    let Ok(_held) = File::open(device) else {
        return;
    };
    if image_of(device).is_some_and(|image| is_below(&image, root)) {
        output("losetup", &["-d", device]);
    }
}

/// The same without the disks of volume groups: what an agent has attached.
pub fn attached_images_below(root: &str) -> Vec<String> {
    let mut images = images_below(root);
    images.retain(|(_, image)| {
        let name = image.rsplit('/').next();
        !name.is_some_and(|name| name.starts_with("disk-"))
    });
    images.into_iter().map(|(device, _)| device).collect()
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_attached(device: &str) -> bool {
        image_of(device).is_some()
    }

    #[test]
    fn a_device_whose_name_went_to_another_test_stays() {
        let (gone, other) = (Scratch::new(), Scratch::new());
        let device = other.disk("image", 8);
        detach_if_below(&device, &gone.path().to_string_lossy());
        assert!(is_attached(&device));
        detach_if_below(&device, &other.path().to_string_lossy());
        assert!(!is_attached(&device));
    }

    #[test]
    fn the_end_of_a_cluster_takes_only_the_devices_on_its_own_disk() {
        let scratch = Scratch::new();
        let detach_loops = |image: &str| {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/lab/cluster/remains.sh");
            let words = r#"set -euo pipefail; . "$0"; detach_loops "$1""#;
            run("bash", &["-c", words, script, image]);
        };
        let attached = |file_system: &Path| {
            let image = file_system.join("image");
            run("truncate", &["--size=8M", &image.to_string_lossy()]);
            let device = run("losetup", &["--find", "--show", &image.to_string_lossy()]);
            device.trim().to_owned()
        };
        let node = scratch.file_system("node", Kind::Ext4, 32);
        let image = format!("{}.img", node.to_string_lossy());
        let mine = attached(&node);
        let source = ["--noheadings", "--output", "SOURCE"];
        let disk = run(
            "findmnt",
            &[&source[..], &[&node.to_string_lossy()]].concat(),
        );
        // As when the namespaces of a node are gone.
        run("umount", &["--lazy", &node.to_string_lossy()]);
        detach_loops(&image);
        assert!(!is_attached(&mine) && !is_attached(disk.trim()));

        // Its name goes to the disk of somebody else.
        let other = scratch.file_system("other", Kind::Ext4, 32);
        let theirs = attached(&other);
        detach_loops(&image);
        assert!(is_attached(&theirs));
    }
}
