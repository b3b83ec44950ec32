//! What was written to a volume reaches the disk before LVM suspends it: `lvcreate -s` would sync all of that with the lock
//! of the group held, from which whoever gives a full pool more could not get at it.

use std::{fs::File, sync::Arc, time::Duration};

use super::{Lvm, Volumes, metadata::VolumeGroup};
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
    /// Syncs what users of a volume have written. One that is not there, or has no device, has nothing to sync.
    ///
    /// # Errors
    /// `NoSpace` when its pool is full: a sync would wait for the writers of a full pool, or fail with them. `Busy` when
    /// that takes too long; a repeat waits for the same sync.
    pub(super) async fn flush(&self, now: &VolumeGroup, id: ImageId) -> Result<()> {
        let Volumes::Thin(pool) = &self.settings.volumes else {
            return self.sync(now, id).await;
        };
        self.check_pool_room(now, pool, 0, 0).await?;
        match self.sync(now, id).await {
            // The sync itself may have filled it.
            Err(error) => Err(self
                .check_pool_room(now, pool, 0, 0)
                .await
                .err()
                .unwrap_or(error)),
            Ok(()) => Ok(()),
        }
    }

    async fn sync(&self, now: &VolumeGroup, id: ImageId) -> Result<()> {
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
            // LVM suspends for as long as it likes: one sync is enough.
            flush::flush(&[target], Duration::MAX)
        })
        .await
    }
}

/// What has to be synced of a device: the file system that is mounted from it, or the device itself when somebody has it
/// open. The last one who closes it syncs it.
pub(super) fn unflushed(device: &Mapped) -> Result<Option<File>> {
    if let Some((directory, _)) = mounted(device)? {
        return Ok(Some(directory));
    }
    if device.open == 0 {
        return Ok(None);
    }
    let node = device.node()?;
    let opened = File::open(&node);
    let opened =
        opened.map_err(|error| Error::io(format!("could not open {}", node.display()), error))?;
    Ok(Some(opened))
}

/// A directory of the file system that is mounted from a device and can be written to, and its type.
pub(super) fn mounted(device: &Mapped) -> Result<Option<(File, String)>> {
    let table = MountTable::read()?;
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
