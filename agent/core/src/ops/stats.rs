//! How full a volume is, and how well (CSI, `NodeGetVolumeStats`).

use std::fs;

use super::{Operations, devices::Devices, resolve::not_here, volume::Condition};
use crate::{
    Result, blocking,
    host::{Disk, MountTable},
    types::{ImageKind, Reference},
};

/// Use of one kind of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// All there is.
    pub total: u64,
    /// What is used.
    pub used: u64,
    /// What anybody may still take.
    pub available: u64,
}

/// How full a volume is, and how well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStats {
    /// Bytes.
    pub bytes: Usage,
    /// Inodes, of a file system that counts them.
    pub inodes: Option<Usage>,
    /// Whether it is as it should be.
    pub condition: Condition,
}

impl Operations {
    /// The stats of a volume that is staged or published at `path`.
    ///
    /// # Errors
    /// `NotFound` for the volume, or when it is not at `path`.
    pub async fn stats(&self, volume: &Reference, path: &str) -> Result<VolumeStats> {
        let found = self
            .find(ImageKind::Volume, volume)
            .await
            .map_err(not_here)?;
        let path = found.shown_at(path).await?;
        let devices = Devices::of(&found).await?;
        let mut condition = Condition::of(&found.image.health);
        let size = found.image.size.bytes();
        blocking(move || {
            let table = MountTable::read()?;
            let mount = table.at(&path);
            let Some(mount) = mount.filter(|mount| mount.fs_type != "devtmpfs") else {
                // How much of a raw device is used only its user knows.
                let bytes = Usage {
                    total: size,
                    used: 0,
                    available: 0,
                };
                return Ok(VolumeStats {
                    bytes,
                    inodes: None,
                    condition,
                });
            };
            if !condition.abnormal
                && !mount.read_only
                && (mount.is_file_system_read_only() || mount.has_option("emergency_ro"))
                && devices.first().is_some()
            {
                condition = Condition {
                    abnormal: true,
                    message: "its file system has become read-only; look at the kernel's log"
                        .to_owned(),
                };
            }
            // One that has shut itself down still tells its room.
            if let Err(error) = fs::symlink_metadata(&path)
                && !condition.abnormal
            {
                condition = Condition {
                    abnormal: true,
                    message: format!(
                        "its file system does not answer; look at the kernel's log: {error}"
                    ),
                };
            }
            let disk = Disk::of(&path)?;
            Ok(VolumeStats {
                bytes: Usage {
                    total: disk.total,
                    used: disk.used,
                    available: disk.available,
                },
                inodes: (disk.inodes > 0).then(|| Usage {
                    total: disk.inodes,
                    used: disk.inodes.saturating_sub(disk.free_inodes),
                    available: disk.free_inodes,
                }),
                condition,
            })
        })
        .await
    }
}
