//! The devices of logical volumes: whether they are in use, and their nodes.

use std::path::PathBuf;

use crate::{
    Result, blocking,
    host::{DeviceNumber, MountTable, crypt_mapping, device_mapper::Mapped, holders},
};

/// The device that the users of a volume use: the mapping over it if it is encrypted and open, or its own.
pub(super) fn used_device(device: &Mapped) -> Result<Mapped> {
    let mapping = crypt_mapping::over(device.number)?;
    Ok(mapping.unwrap_or_else(|| device.clone()))
}

/// Returns true if neither a device nor the mapping over it is open. The mapping itself has the device open.
pub(super) fn is_closed(device: &Mapped) -> Result<bool> {
    Ok(match crypt_mapping::over(device.number)? {
        Some(mapping) => mapping.open == 0 && device.open <= 1,
        None => device.open == 0,
    })
}

/// Refuses a device that is in use or could be opened, naming its holders.
pub(super) fn check_unused(device: &Mapped) -> Result<()> {
    if is_closed(device)? && !is_mounted(device)? {
        return Ok(());
    }
    let path = used_device(device)?.path();
    let users = holders::users_of_device(&path);
    Err(holders::device_in_use(&path, &users))
}

/// Returns true if a device, or its node, is mounted: a raw volume is in use while its node is published, open or
/// not.
pub(super) fn is_mounted(device: &Mapped) -> Result<bool> {
    let device = &used_device(device)?;
    let path = device.path();
    let number = DeviceNumber::of_block_device(&path).unwrap_or(device.number);
    let table = MountTable::read()?;
    Ok(table.of_block_device(&path, number).next().is_some())
}

/// The node of a device; waits only if it does not exist yet.
pub(super) async fn node(device: Mapped) -> Result<PathBuf> {
    if device.has_node() {
        return Ok(device.path());
    }
    blocking(move || device.node()).await
}
