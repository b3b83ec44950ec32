//! The devices of logical volumes: whether they are in use, and their nodes.

use std::path::PathBuf;

use crate::{
    Result, blocking,
    host::{DeviceNumber, MountTable, device_mapper::Mapped, holders},
};

/// Refuses a device that is in use or could be opened, naming its holders.
pub(super) fn check_unused(device: &Mapped) -> Result<()> {
    let path = device.path();
    if device.open == 0 && !is_mounted(device)? {
        return Ok(());
    }
    let users = holders::users_of_device(&path);
    Err(holders::device_in_use(&path, &users))
}

/// Returns true if a device, or its node, is mounted: a raw volume is in use while its node is published, open or
/// not.
pub(super) fn is_mounted(device: &Mapped) -> Result<bool> {
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
