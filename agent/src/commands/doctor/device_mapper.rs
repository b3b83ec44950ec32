//! Devices of a volume group in the kernel: suspended, half-built, and those that no logical volume has.

use std::{fs, path::Path, thread, time::Duration};

use drumlin_core::{
    backend::lvm::own_devices,
    host::device_mapper::{DeviceMapper, Mapped},
};
use drumlin_lvm::metadata::GroupMetadata;

use super::{
    check::Check,
    finding::{Finding, quoted, shell},
    subject::Subject,
};

/// A running agent suspends devices for less than this, and so do LVM's programs.
const SETTLED: Duration = Duration::from_millis(1200);

/// Looks at the devices of a group.
pub(super) fn check(subject: &Subject, now: &GroupMetadata) -> Vec<Finding> {
    // Where there is none, the checks of the kernel say so.
    if !Path::new("/dev/mapper/control").exists() {
        return Vec::new();
    }
    let mapper = match DeviceMapper::open() {
        Ok(mapper) => mapper,
        Err(error) => return vec![Finding::not_checked("device-mapper", error.chain())],
    };
    let prefix = format!("LVM-{}", now.uuid);
    let list = |prefix: &str| mapper.list(prefix).map_err(|error| error.chain());
    let mut devices = match list(&prefix) {
        Ok(devices) => devices,
        Err(why) => {
            return vec![Finding::not_checked(
                format!("devices of {}", now.name),
                why,
            )];
        }
    };
    let is_settled =
        |device: &Mapped| device.is_live && !device.is_suspended && !device.has_waiting_table;
    if !devices.iter().all(is_settled) {
        thread::sleep(SETTLED);
        let still = list(&prefix).unwrap_or_default();
        devices.retain(|device| is_settled(device) || still.contains(device));
    }
    let mut found: Vec<Finding> = devices
        .iter()
        .filter_map(|device| state(now, device))
        .collect();
    if subject.agent.is_none() {
        let own = list(&own_devices(now)).unwrap_or_default();
        found.extend(
            own.iter()
                .map(|device| orphan(device, "an agent that died left it")),
        );
    }
    found.extend(dangling(&now.name));
    found
}

fn state(now: &GroupMetadata, device: &Mapped) -> Option<Finding> {
    let path = device.path();
    if device.is_suspended {
        return Some(
            Finding::at(
                Check::SuspendedDevice,
                &path,
                "it is suspended: whoever reads or writes it waits, and cannot be killed",
            )
            .command(format!("dmsetup resume {}", quoted(&device.name)))
            .advice("resume the devices of a pool before its volumes; starting the agent resumes all of them in order"),
        );
    }
    if !device.is_live || device.has_waiting_table {
        return Some(
            Finding::at(
                Check::HalfBuiltDevice,
                &path,
                "it has a table that was never activated: a program was killed before it did so",
            )
            .advice("start the agent, which clears the table or removes the device"),
        );
    }
    let mut volumes = now.volumes.values();
    let is_known = volumes.any(|volume| device.uuid.starts_with(&now.mapped_uuid(volume)));
    (!is_known).then(|| orphan(device, "no logical volume of its group has it"))
}

fn orphan(device: &Mapped, why: &str) -> Finding {
    let message = match device.open {
        0 => why.to_owned(),
        open => format!("{why}; it is open {open} times, or mounted"),
    };
    Finding::at(Check::OrphanDevice, &device.path(), message)
        .command(format!("dmsetup remove {}", quoted(&device.name)))
}

/// Links to volumes of a group that are gone.
fn dangling(group: &str) -> Vec<Finding> {
    let home = Path::new("/dev").join(group);
    let links = fs::read_dir(&home).into_iter().flatten().flatten();
    let links = links.map(|entry| entry.path());
    links
        .filter(|link| link.is_symlink() && !link.exists())
        .map(|link| {
            Finding::at(
                Check::OrphanDevice,
                &link,
                "the device that this link names does not exist",
            )
            .command(format!("rm {}", shell(&link)))
        })
        .collect()
}
