//! What the classes need of the kernel, and what is wrong with it.

use std::{fs::File, path::Path};

use nix::errno::Errno;

use super::{check::Check, finding::Finding, known_faults, subject::Subject};

/// Looks for loop devices and device-mapper where classes need them, and for known faults.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let mut found = Vec::new();
    let control = Path::new("/dev/loop-control");
    if subject.directories().next().is_some() && !control.exists() {
        let message = "directory classes need loop devices, and the kernel has none, or this is a container without the host's /dev";
        found.push(Finding::at(Check::NoLoopDevices, control, message).command("modprobe loop"));
    }
    let control = Path::new("/dev/mapper/control");
    let mut classes = subject.classes.iter();
    let is_used =
        subject.volume_groups().next().is_some() || classes.any(|class| class.encryption.is_some());
    if is_used && !is_served(control) {
        let message = "LVM classes, and those that encrypt, need device-mapper, and the kernel has none, or this is a container without the host's /dev";
        found.push(Finding::at(Check::NoDeviceMapper, control, message).command("modprobe dm-mod"));
    }
    found.extend(known_faults::of_kernel(subject));
    found
}

/// Returns true if the kernel has what a device node stands for: the node may be there without it.
fn is_served(node: &Path) -> bool {
    let missing = [Errno::ENOENT, Errno::ENODEV, Errno::ENXIO];
    let error = File::open(node)
        .err()
        .and_then(|error| error.raw_os_error());
    error.is_none_or(|error| !missing.contains(&Errno::from_raw(error)))
}
