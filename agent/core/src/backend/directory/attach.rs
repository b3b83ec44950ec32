//! Block devices of images.

use std::path::PathBuf;

use super::Inner;
use crate::{
    Error, Kind, Result,
    backend::{AttachedDevice, Change},
    fail,
    host::{
        Access, DeviceNumber, MountTable, crypt_mapping, holders,
        loop_device::{self, LoopDevice},
    },
    types::ImageId,
};

impl Inner {
    /// A loop device over an image: the existing one, or a new one.
    pub(super) fn attach(&self, id: ImageId, access: Access) -> Result<AttachedDevice> {
        self.layout.usable(id)?;
        let (device, hold) = loop_device::attach_and_hold(&self.layout.image(id), access)?;
        fail::point("directory.attach.attached");
        Ok(AttachedDevice::held(device.path, hold))
    }

    /// The loop devices over an image.
    pub(super) fn devices(&self, id: ImageId) -> Result<Vec<PathBuf>> {
        let devices = loop_device::find(&self.layout.image(id))?;
        Ok(devices.into_iter().map(|device| device.path).collect())
    }

    /// The loop devices over an image, and read-only loop devices over those, which come first.
    fn all_devices(&self, id: ImageId) -> Result<Vec<LoopDevice>> {
        let mut devices = Vec::new();
        for device in loop_device::find(&self.layout.image(id))? {
            devices.extend(loop_device::find(&device.path)?);
            devices.push(device);
        }
        Ok(devices)
    }

    /// Refuses an image whose devices [`Self::detach`] would refuse to detach.
    pub(super) fn check_detachable(&self, id: ImageId) -> Result<()> {
        let devices = self.all_devices(id)?;
        let table = MountTable::read()?;
        for device in &devices {
            not_mounted(id, device, &table)?;
            let used = crypt_mapping::uppermost(&device.path)?;
            if !holders::of_device(&used).is_empty() {
                let users = holders::users_of_device(&used);
                return Err(holders::device_in_use(&used, &users));
            }
        }
        Ok(())
    }

    /// Detaches the loop devices over an image, and read-only loop devices over those.
    pub(super) fn detach(&self, id: ImageId) -> Result<Change<()>> {
        let devices = self.all_devices(id)?;
        if devices.is_empty() {
            return Ok(Change::Already(()));
        }
        let table = MountTable::read()?;
        for device in &devices {
            not_mounted(id, device, &table)?;
        }
        for device in &devices {
            loop_device::detach(device)?;
            fail::point("directory.detach.one");
        }
        Ok(Change::Made(()))
    }
}

fn not_mounted(id: ImageId, device: &LoopDevice, table: &MountTable) -> Result<()> {
    let used = crypt_mapping::uppermost(&device.path)?;
    let number = DeviceNumber::of_block_device(&used)?;
    let mount = table.of_block_device(&used, number).next();
    match mount {
        None => Ok(()),
        Some(mount) => Err(Error::new(
            Kind::InUse,
            format!(
                "{id} is in use at {}; unmount it first",
                mount.target.display()
            ),
        )),
    }
}
