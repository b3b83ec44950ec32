//! Usage and condition of a volume (CSI, `NodeGetVolumeStats`).

use std::time::Duration;

use tokio::time::Instant;

use crate::ops::{
    Operations,
    devices::Devices,
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    node::health,
    volume::Condition,
};
use crate::{
    Error, Kind, Result,
    host::{Disk, MountTable},
    types::{ImageKind, Reference},
};

/// Timeout for waiting on other stats calls for the same volume: shorter than the usual deadlines of callers.
const PATIENCE: Duration = Duration::from_secs(8);

/// Usage of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Total amount.
    pub total: u64,
    /// Used amount.
    pub used: u64,
    /// Amount available to unprivileged users.
    pub available: u64,
}

/// Usage and condition of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStats {
    /// Usage in bytes.
    pub bytes: Usage,
    /// Usage in inodes, for a file system that counts them.
    pub inodes: Option<Usage>,
    /// Condition of the volume.
    pub condition: Condition,
}

impl Operations {
    /// The stats of a volume that is staged or published at `path`.
    ///
    /// # Errors
    /// `NotFound` for the volume, or if it is not at `path`; `Busy` while its file system does not respond.
    pub async fn stats(&self, volume: &Reference, path: &str) -> Result<VolumeStats> {
        let found = self
            .find(ImageKind::Volume, volume)
            .await
            .map_err(not_here)?;
        let path = path.to_owned();
        // A file system that does not respond blocks one thread only, however many calls arrive.
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
        let measured = measured.await;
        self.readings.note_call();
        measured
    }
}

impl LocatedImage {
    fn measure(
        &self,
        path: &str,
        (devices, table): (&Devices, &MountTable),
    ) -> Result<VolumeStats> {
        let path = self.shown(path, (devices, table))?;
        let mut faults = self.faults();
        let mount = table.at(&path);
        let Some(mount) = mount.filter(|mount| mount.fs_type != "devtmpfs") else {
            // Only the user of a raw device knows how much of it is used.
            let bytes = Usage {
                total: self.image.size.bytes(),
                used: 0,
                available: 0,
            };
            return Ok(VolumeStats {
                bytes,
                inodes: None,
                condition: Condition::with(faults.first()),
            });
        };
        if devices.first().is_some() {
            faults.extend(health::of_mount(mount));
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
            condition: Condition::with(faults.first()),
        })
    }
}
