//! What device-mapper calls a device, as sysfs shows it: this opens no device, and works for those that are suspended.

use std::fs;

use drumlin_core::host::DeviceNumber;

/// The name and UUID of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MappedName {
    /// Its name below `/dev/mapper`.
    pub(super) name: String,
    /// Its UUID.
    pub(super) uuid: String,
}

/// Returns true if there are any.
pub(super) fn exist() -> bool {
    let devices = fs::read_dir("/sys/class/block");
    let mut devices = devices.into_iter().flatten().flatten();
    devices.any(|device| device.path().join("dm").exists())
}

/// The device-mapper device of this number, if it is one.
pub(super) fn at(number: DeviceNumber) -> Option<MappedName> {
    let read = |file: &str| {
        let text = fs::read_to_string(format!("/sys/dev/block/{number}/dm/{file}")).ok()?;
        Some(text.trim_end().to_owned())
    };
    Some(MappedName {
        name: read("name")?,
        uuid: read("uuid")?,
    })
}

/// The numbers of the devices directly below a device.
pub(super) fn below(number: DeviceNumber) -> impl Iterator<Item = DeviceNumber> {
    let below = fs::read_dir(format!("/sys/dev/block/{number}/slaves"));
    let below = below.into_iter().flatten().flatten();
    below.filter_map(|device| {
        let text = fs::read_to_string(device.path().join("dev")).ok()?;
        let (major, minor) = text.trim_end().split_once(':')?;
        Some(DeviceNumber {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    })
}
