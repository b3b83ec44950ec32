//! What the classes need of the kernel, and what is wrong with it.

use std::path::Path;

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
    if subject.volume_groups().next().is_some() && !control.exists() {
        let message = "LVM classes need device-mapper, and the kernel has none, or this is a container without the host's /dev";
        found.push(Finding::at(Check::NoDeviceMapper, control, message).command("modprobe dm-mod"));
    }
    found.extend(known_faults::of_kernel(subject));
    found
}
