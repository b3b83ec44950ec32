//! Flushes a volume before LVM suspends it: `lvcreate -s` would sync all cached data with the volume group locked,
//! and an administrator could not extend a full pool meanwhile.

use std::{fs::File, sync::Arc, time::Duration};

use drumlin_lvm::metadata::GroupMetadata;

use super::{Lvm, devices::used_device};
use crate::{
    Error, Result, blocking,
    host::{
        MountTable,
        device_mapper::Mapped,
        flush::{self, Target},
    },
    types::ImageId,
};

impl Lvm {
    /// Syncs the cached writes of a volume. Does nothing for a volume that does not exist or is not active.
    ///
    /// # Errors
    /// `Busy` on a timeout; a repeated call waits for the same sync.
    pub(super) async fn sync(&self, now: &GroupMetadata, id: ImageId) -> Result<()> {
        let found = self.find(now, id);
        let Some(uuid) = found.map(|found| now.mapped_uuid(found.volume)) else {
            return Ok(());
        };
        let group = Arc::clone(&self.group);
        blocking(move || {
            let device = group.mapper()?.find(&uuid)?;
            let Some(device) = device.filter(|device| device.is_live) else {
                return Ok(());
            };
            let Some(file) = unflushed(&device)? else {
                return Ok(());
            };
            let target = Target {
                name: &id.to_string(),
                file: &file,
            };
            // LVM suspends without a time limit: one sync is enough.
            flush::flush(&[target], Duration::MAX)
        })
        .await
    }
}

/// What must be synced for a device: the file system mounted from it, or the device itself when a process has it
/// open. The last close of a device syncs it.
pub(super) fn unflushed(device: &Mapped) -> Result<Option<File>> {
    if let Some((directory, _)) = mounted(device)? {
        return Ok(Some(directory));
    }
    let device = used_device(device)?;
    if device.open == 0 {
        return Ok(None);
    }
    let node = device.node()?;
    let opened = File::open(&node);
    let opened =
        opened.map_err(|error| Error::io(format!("could not open {}", node.display()), error))?;
    Ok(Some(opened))
}

/// A directory of the writable file system mounted from a device, and its type.
pub(super) fn mounted(device: &Mapped) -> Result<Option<(File, String)>> {
    let table = MountTable::read()?;
    let device = used_device(device)?;
    let node = device.node()?;
    let mut mounts = table.of_block_device(&node, device.number);
    let writable =
        mounts.find(|mount| !mount.is_file_system_read_only() && mount.fs_type != "devtmpfs");
    let Some(mount) = writable.filter(|mount| mount.target.is_dir()) else {
        return Ok(None);
    };
    let directory = File::open(&mount.target);
    let directory = directory
        .map_err(|error| Error::io(format!("could not open {}", mount.target.display()), error))?;
    Ok(Some((directory, mount.fs_type.clone())))
}
