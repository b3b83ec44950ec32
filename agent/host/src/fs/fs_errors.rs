//! The errors that mounted file systems have counted themselves.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use crate::{DeviceNumber, FileSystem, Mount, system};

/// The counters of a btrfs that mean an error (`devinfo/1/error_stats`).
const BTRFS_COUNTERS: [&str; 5] = [
    "write_errs",
    "read_errs",
    "flush_errs",
    "corruption_errs",
    "generation_errs",
];

/// The errors of the file system of a mount, as text: those that ext4 keeps in its superblock until it is checked
/// (e2fsck), those that btrfs keeps until they are reset (`btrfs device stats --reset`), and what xfs has found to be
/// corrupt since it was mounted. None if there are none, or if the kernel does not tell.
pub fn errors_of(mount: &Mount) -> Option<String> {
    let kind = mount.fs_type.parse::<FileSystem>().ok()?;
    match kind {
        FileSystem::Ext4 => ext4(Path::new("/sys/fs/ext4"), &kernel_name(mount)?),
        FileSystem::Btrfs => btrfs(Path::new("/sys/fs/btrfs"), &kernel_name(mount)?),
        FileSystem::Xfs => {
            let directory = File::open(&mount.target).ok()?;
            let sick = system::xfs_sick(directory).ok().filter(|sick| *sick != 0)?;
            Some(format!(
                "its xfs has corrupt metadata (health bits {sick:#x}); unmount it and run xfs_repair"
            ))
        }
    }
}

/// The kernel's name of the block device of a mount, such as `dm-3`.
fn kernel_name(mount: &Mount) -> Option<String> {
    let number = DeviceNumber::of_block_device(Path::new(&mount.source)).ok()?;
    let device = fs::canonicalize(format!("/sys/dev/block/{number}")).ok()?;
    Some(device.file_name()?.to_str()?.to_owned())
}

fn ext4(root: &Path, name: &str) -> Option<String> {
    let read = |file: &str| fs::read_to_string(root.join(name).join(file)).ok();
    let count: u64 = read("errors_count")?.trim().parse().ok()?;
    if count == 0 {
        return None;
    }
    let place = read("last_error_func").unwrap_or_default();
    let place = place.trim();
    let place = if place.is_empty() { "unknown" } else { place };
    Some(format!(
        "its ext4 has counted {count} errors, the last in {place}; unmount it and run e2fsck -f"
    ))
}

fn btrfs(root: &Path, name: &str) -> Option<String> {
    let home = fs::read_dir(root).ok()?.flatten().map(|entry| entry.path());
    let home: PathBuf = home
        .filter(|home| home.join("devices").join(name).exists())
        .find(|home| home.join("devinfo").exists())?;
    let counters = fs::read_to_string(home.join("devinfo/1/error_stats")).ok()?;
    let errors: Vec<&str> = counters
        .lines()
        .filter(|line| {
            let (counter, count) = line.split_once(' ').unwrap_or((line, "0"));
            BTRFS_COUNTERS.contains(&counter) && count.trim() != "0"
        })
        .collect();
    if errors.is_empty() {
        return None;
    }
    Some(format!(
        "its btrfs has counted errors ({}); check it with btrfs scrub, and reset the counters with btrfs device stats --reset",
        errors.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_counters_of_ext4_are_read() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(ext4(root.path(), "dm-1"), None);
        write(root.path(), "dm-1/errors_count", "0\n");
        assert_eq!(ext4(root.path(), "dm-1"), None);
        write(root.path(), "dm-1/errors_count", "3\n");
        write(root.path(), "dm-1/last_error_func", "ext4_lookup\n");
        let text = ext4(root.path(), "dm-1").unwrap();
        assert!(text.contains("3 errors, the last in ext4_lookup"), "{text}");
    }

    #[test]
    fn the_counters_of_btrfs_are_those_of_its_device() {
        let root = tempfile::tempdir().unwrap();
        let clean =
            "write_errs 0\nread_errs 0\nflush_errs 0\ncorruption_errs 0\ngeneration_errs 0\n";
        write(root.path(), "u1/devices/loop1", "");
        write(root.path(), "u1/devinfo/1/error_stats", clean);
        write(root.path(), "u2/devices/loop2", "");
        let bad = clean.replace("corruption_errs 0", "corruption_errs 2");
        write(root.path(), "u2/devinfo/1/error_stats", &bad);
        assert_eq!(btrfs(root.path(), "loop1"), None);
        assert_eq!(btrfs(root.path(), "loop3"), None);
        let text = btrfs(root.path(), "loop2").unwrap();
        assert!(text.contains("(corruption_errs 2)"), "{text}");
    }
}
