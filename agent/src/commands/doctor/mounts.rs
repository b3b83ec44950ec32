//! Mounts of volumes that are gone or hidden, and file systems that are no longer as they were mounted.

use std::{fs, path::PathBuf};

use drumlin_core::host::{Disk, MountTable, fs_errors};
use nix::errno::Errno;

use super::{
    check::Check,
    finding::{Finding, shell},
    host_mounts,
    own_mounts::{self, OwnMount, hidden_by},
    subject::Subject,
};

/// The part of its blocks or inodes from which a file system is nearly full, in percent.
const FULL: u64 = 95;

/// Looks at each mount of a volume.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let table = match MountTable::read() {
        Ok(table) => table,
        Err(error) => return vec![Finding::not_checked("mounts", error.chain())],
    };
    let mounts = match own_mounts::find(subject, &table) {
        Ok(mounts) => mounts,
        Err(why) => return vec![Finding::not_checked("mounts", why)],
    };
    let mut found = host_mounts::check(subject, &mounts);
    let mut devices: Vec<PathBuf> = Vec::new();
    for own in &mounts {
        found.extend(place(&table, own));
        // One file system can have many mounts.
        if own.mount.fs_type != "devtmpfs" && !devices.contains(&own.device) {
            devices.push(own.device.clone());
            found.extend(file_system(own));
            found.extend(fill(own));
        }
    }
    found
}

fn place(table: &MountTable, own: &OwnMount) -> Vec<Finding> {
    let target = &own.mount.target;
    let unmount = format!("umount {}", shell(target));
    let mut found = Vec::new();
    if let Some(image) = &own.lost_image {
        let message = format!(
            "it shows a volume that is gone: its image {} was deleted or replaced; what is written here is lost",
            image.display()
        );
        found.push(Finding::at(Check::LeakedMount, target, message).command(&unmount));
    }
    // The same volume twice at one path is what a publication over a stage can be.
    let other = hidden_by(table, &own.mount).filter(|other| other.device != own.mount.device);
    if let Some(other) = other {
        let message = format!(
            "this mount of {} is hidden: {} is mounted over it at {}",
            own.device.display(),
            other.source.display(),
            other.target.display()
        );
        found.push(
            Finding::at(Check::HiddenMount, target, message)
                .command(format!("umount {}", shell(&other.target))),
        );
    }
    found
}

fn file_system(own: &OwnMount) -> Vec<Finding> {
    let mount = &own.mount;
    let mut found = Vec::new();
    let errors = fs_errors::errors_of(mount);
    // A file system that was mounted read-only has mounts that are so, too.
    let is_forced = mount.is_file_system_read_only() && !mount.read_only && errors.is_some();
    if is_forced || mount.has_option("emergency_ro") {
        let message = format!(
            "the file system of {} became read-only after an error",
            own.device.display()
        );
        found.push(
            Finding::at(Check::ReadOnlyAfterError, &mount.target, message).advice(
                "unmount it everywhere, check it (e2fsck -f, xfs_repair), and mount it again",
            ),
        );
    }
    // xfs answers nothing any more once it has shut itself down; ext4 opens nothing.
    let opened = fs::read_dir(&mount.target).and_then(|mut entries| entries.next().transpose());
    let is_input_error =
        |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0)) == Errno::EIO;
    let is_shut_down = opened.is_err_and(is_input_error) || mount.has_option("shutdown");
    if is_shut_down {
        let message = format!(
            "the file system of {} has shut itself down; every access fails",
            own.device.display()
        );
        found.push(
            Finding::at(Check::FileSystemShutDown, &mount.target, message)
                .advice("unmount it everywhere, look at the kernel's log, and mount it again"),
        );
    }
    if let Some(errors) = errors {
        found.push(
            Finding::at(
                Check::FileSystemErrors,
                &mount.target,
                format!("{}: {errors}", own.device.display()),
            )
            .advice("do that while the volume is not in use"),
        );
    }
    found
}

/// A file system in which there is little room left.
fn fill(own: &OwnMount) -> Option<Finding> {
    let disk = Disk::of(&own.mount.target).ok()?;
    let percent = |used: u64, all: u64| used.saturating_mul(100).checked_div(all).unwrap_or(0);
    let blocks = percent(disk.used, disk.used.saturating_add(disk.available));
    let inodes = percent(disk.inodes.saturating_sub(disk.free_inodes), disk.inodes);
    let (percent, what) = if blocks >= FULL {
        (blocks, "space")
    } else {
        (inodes, "inodes")
    };
    let message = format!("{percent} % of its {what} is used");
    let advice = "delete files in it, or let the volume grow (spec.capacity)";
    (percent >= FULL)
        .then(|| Finding::at(Check::VolumeFull, &own.mount.target, message).advice(advice))
}
