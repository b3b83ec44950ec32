//! What a predecessor that was killed may have left, found and ended before anything else is done.

use super::{Thin, metadata::VolumeGroup};
use crate::{Result, host::device_mapper::Mapped};

impl Thin {
    /// Lets go of devices that are held, the pool before its volumes, and removes what was half made.
    pub(super) async fn repair(&self) -> Result<()> {
        let now = self.group.now().await?;
        self.resume_all(&now)?;
        let undone: Vec<_> = self.ours(&now).filter(|ours| ours.tags.is_undone).collect();
        for ours in undone {
            tracing::warn!(volume = %ours.volume.name, group = %now.name, "removes a volume that was never finished");
            self.remove(ours.volume).await?;
        }
        Ok(())
    }

    /// Devices of the group that somebody suspended and died. A table that waited is dropped first: the metadata tells
    /// the length, and the device gets it when it is used next.
    fn resume_all(&self, now: &VolumeGroup) -> Result<()> {
        let mapper = self.group.mapper()?;
        let mut devices = mapper.list(&format!("LVM-{}", now.uuid))?;
        devices.retain(|device| device.is_suspended && device.is_live);
        devices.sort_by_key(depth);
        for device in devices {
            tracing::warn!(device = %device.name, "resumes a device that was left suspended");
            // The order is what matters: a volume is cleared only when its pool runs.
            if device.has_waiting_table {
                mapper.clear(&device.uuid)?;
            }
            mapper.resume(&device.uuid)?;
        }
        Ok(())
    }
}

/// How far below the volumes a device is: parts, then pools, then the rest.
fn depth(device: &Mapped) -> u8 {
    let ends = |ends: &[&str]| ends.iter().any(|end| device.uuid.ends_with(end));
    if ends(&["-tmeta", "-tdata", "-real", "-cow"]) {
        0
    } else {
        u8::from(!ends(&["-tpool"])) + 1
    }
}
