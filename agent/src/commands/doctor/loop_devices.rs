//! Loop devices of images: those that are leaked, and several of one image.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    thread,
    time::Duration,
};

use drumlin_core::{
    backend::directory,
    host::{
        LoopDevice, holders,
        loop_device::{self, list_below},
    },
    ops::was_staged_raw,
};

use super::{
    check::Check,
    finding::{Finding, shell},
    subject::Subject,
};

/// What the agent has just attached it uses after this time.
const SETTLED: Duration = Duration::from_millis(700);

/// Looks at the loop devices of each directory class.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, settings) in subject.directories() {
        let mut devices = match list_below(&settings.path) {
            Ok(devices) => devices,
            Err(error) => {
                found.push(Finding::not_checked(format!("class {name}"), error.chain()));
                continue;
            }
        };
        let survey = directory::survey(&settings.path).unwrap_or_default();
        let raw: BTreeSet<PathBuf> = survey
            .images
            .iter()
            .filter(|one| was_staged_raw(&one.image.labels))
            .map(|one| one.file.clone())
            .collect();
        let is_unused = |device: &LoopDevice| users(device).is_empty();
        let unused: Vec<LoopDevice> = devices
            .iter()
            .filter(|one| is_unused(one))
            .cloned()
            .collect();
        let is_known = |device: &LoopDevice| {
            is_lost(device) || !unused.contains(device) || raw.contains(&device.backing.path)
        };
        if !devices.iter().all(is_known) {
            // The agent attaches a device right before it uses it.
            thread::sleep(SETTLED);
            devices.retain(|device| matches!(loop_device::at(&device.path), Ok(Some(_))));
        }
        for device in &devices {
            let is_raw = raw.contains(&device.backing.path);
            let is_leaked = unused.contains(device) && is_unused(device) && !is_raw;
            let leaked = if is_lost(device) {
                Some(lost(device))
            } else {
                is_leaked.then(|| useless(device))
            };
            found.extend(leaked);
        }
        found.extend(duplicates(&devices));
    }
    found
}

/// Its image was deleted or replaced. One that is hidden by another mount has its path still, and is not lost.
fn is_lost(device: &LoopDevice) -> bool {
    device.backing.deleted
}

/// Mounts, devices and processes that use a loop device.
fn users(device: &LoopDevice) -> Vec<String> {
    holders::users_of_device(&device.path)
}

fn lost(device: &LoopDevice) -> Finding {
    let users = users(device);
    let used = if users.is_empty() {
        String::new()
    } else {
        format!("; it is in use by {}", users.join(", "))
    };
    let image = device.backing.path.display();
    leaked(
        device,
        format!("its image {image} was deleted or replaced{used}"),
    )
}

fn useless(device: &LoopDevice) -> Finding {
    let image = device.backing.path.display();
    leaked(
        device,
        format!("nothing uses this device of the image {image}"),
    )
}

fn leaked(device: &LoopDevice, message: String) -> Finding {
    let detach = format!("losetup -d {}", shell(&device.path));
    Finding::at(Check::LeakedLoopDevice, &device.path, message).command(detach)
}

/// Images with several devices of the same access: what is written through one is not seen through the other.
fn duplicates(devices: &[LoopDevice]) -> Vec<Finding> {
    let mut of: BTreeMap<(u64, u64), Vec<&LoopDevice>> = BTreeMap::new();
    for device in devices {
        let file = (device.backing.device, device.backing.inode);
        of.entry(file).or_default().push(device);
    }
    let several = of.into_values().filter(|devices| devices.len() > 1);
    let findings = several.filter_map(|devices| {
        let names: Vec<String> = devices
            .iter()
            .map(|one| one.path.display().to_string())
            .collect();
        let unused = devices.iter().find(|device| users(device).is_empty());
        let finding = Finding::at(
            Check::DuplicateLoopDevice,
            &devices.first()?.backing.path,
            format!("the image has several devices: {}", names.join(", ")),
        );
        Some(match unused {
            Some(device) => finding.command(format!("losetup -d {}", shell(&device.path))),
            None => finding.advice("unmount one of them, and detach it with `losetup -d`"),
        })
    });
    findings.collect()
}
