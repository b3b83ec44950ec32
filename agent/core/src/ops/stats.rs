//! How full a volume is, and how well (CSI, `NodeGetVolumeStats`).

use std::{fs, time::Duration};

use tokio::time::Instant;

use super::{
    Operations,
    devices::Devices,
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    volume::Condition,
};
use crate::{
    Error, Kind, Result,
    host::{Disk, MountTable},
    types::{ImageKind, Reference},
};

/// So long a caller waits for others that ask about the same volume: less than the deadlines that callers are known to set.
const PATIENCE: Duration = Duration::from_secs(8);

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
    /// `NotFound` for the volume, or when it is not at `path`; `Busy` while its file system does not answer.
    pub async fn stats(&self, volume: &Reference, path: &str) -> Result<VolumeStats> {
        let found = self
            .find(ImageKind::Volume, volume)
            .await
            .map_err(not_here)?;
        let path = path.to_owned();
        // One that does not answer holds up one thread, however often it is asked.
        let turn = self.measuring.join(
            vec![LockMode::Exclusive(found.image.id)],
            Instant::now() + PATIENCE,
        );
        let turn = turn.await.map_err(|_| {
            Error::new(
                Kind::Busy,
                format!(
                    "the file system of volume {} does not respond; check its disk and the kernel log",
                    found.handle
                ),
            )
        })?;
        let measured = found.look(move |found, seen| {
            let _turn = turn;
            found.measure(&path, seen)
        });
        measured.await
    }
}

impl LocatedImage {
    fn measure(
        &self,
        path: &str,
        (devices, table): (&Devices, &MountTable),
    ) -> Result<VolumeStats> {
        let path = self.shown(path, (devices, table))?;
        let mut condition = Condition::of(&self.image.health);
        let mount = table.at(&path);
        let Some(mount) = mount.filter(|mount| mount.fs_type != "devtmpfs") else {
            // How much of a raw device is used only its user knows.
            let bytes = Usage {
                total: self.image.size.bytes(),
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
                message: "the file system of the volume became read-only; check the kernel log"
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
                    "the file system of the volume does not respond; check the kernel log: {error}"
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
    }
}
