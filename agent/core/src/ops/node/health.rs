//! The health of a volume as this node sees it: its device, its disk, its file system (CSI, `NodeGetVolumeHealth`).

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

use crate::ops::{
    Operations,
    devices::Devices,
    health::{VolumeHealth, once_each},
    locks::LockMode,
    lookup::LocatedImage,
};
use crate::{
    Result,
    backend::{Fault, Reason},
    blocking,
    host::{DeviceNumber, Mount, MountTable, device_mapper::DeviceMapper, fs_errors, read_probe},
    types::{AbsolutePath, ImageKind, Reference},
};

/// How long a disk may take to answer a read of one block.
const DISK_PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait for another call that looks at the same file system.
const MOUNT_PATIENCE: Duration = Duration::from_secs(3);

impl Operations {
    /// The health of a volume, which may be staged and published or not. `paths` are those at which it is, or was to be.
    ///
    /// # Errors
    /// `NotFound`; errors of its class, if that cannot be read and the volume is not known.
    pub async fn node_volume_health(
        &self,
        reference: &Reference,
        paths: Vec<AbsolutePath>,
    ) -> Result<VolumeHealth> {
        let health = self.volume_health(reference).await?;
        let is_away = |fault: &Fault| fault.reason == Reason::ClassUnavailable;
        if health.faults.iter().any(is_away) {
            return Ok(health);
        }
        let found = self.find(ImageKind::Volume, reference).await?;
        let mut faults = health.faults;
        // A damaged image may have no device that can be asked for.
        let devices = found.class.backend.devices(found.image.id).await;
        faults.extend(
            self.node_faults(&found, devices.unwrap_or_default(), paths)
                .await?,
        );
        Ok(VolumeHealth {
            handle: health.handle,
            faults: once_each(faults),
        })
    }

    async fn node_faults(
        &self,
        found: &LocatedImage,
        devices: Vec<PathBuf>,
        paths: Vec<AbsolutePath>,
    ) -> Result<Vec<Fault>> {
        let own = devices.clone();
        let of_devices = blocking(move || Ok(own.iter().find_map(|device| of_device(device))));
        if let Some(fault) = of_devices.await? {
            // Its file system would not answer, either.
            return Ok(vec![fault]);
        }
        // A file system that does not respond blocks one thread only, however many calls arrive.
        let turn = self.measuring.join(
            vec![LockMode::Exclusive(found.image.id)],
            Instant::now() + MOUNT_PATIENCE,
        );
        let Ok(turn) = turn.await else {
            return Ok(vec![Fault::new(
                Reason::FileSystemShutDown,
                "the file system of the volume does not respond; check its disk and the kernel log",
            )]);
        };
        found
            .look(move |_, (devices, table)| {
                let _turn = turn;
                let missing = paths
                    .iter()
                    .find_map(|path| missing_at(path, devices, table));
                let mounts = devices.mounts(table);
                let mounted = mounts.filter(|mount| mount.fs_type != "devtmpfs");
                Ok(missing
                    .into_iter()
                    .chain(mounted.flat_map(of_mount))
                    .collect())
            })
            .await
    }
}

/// What is wrong with a block device: it is silent, or device-mapper has given it up.
fn of_device(device: &Path) -> Option<Fault> {
    if let Some(failed) = failed_mapping(device) {
        return Some(Fault::new(
            Reason::DeviceFailed,
            format!(
                "device-mapper reports {} as {failed}; check its disks and the kernel log",
                device.display()
            ),
        ));
    }
    let silence = read_probe::silence(device, DISK_PATIENCE)?;
    Some(Fault::new(
        Reason::DiskStalled,
        format!(
            "{} has not answered a read for {} s; check its disk and the kernel log",
            device.display(),
            silence.as_secs()
        ),
    ))
}

/// The state of a device-mapper device that has failed.
fn failed_mapping(device: &Path) -> Option<String> {
    let number = DeviceNumber::of_block_device(device).ok()?;
    let uuid = fs::read_to_string(format!("/sys/dev/block/{number}/dm/uuid")).ok()?;
    let (uuid, mapper) = (uuid.trim(), DeviceMapper::open().ok()?);
    let lines = mapper.table(uuid).ok()?;
    if lines.iter().any(|line| line.kind == "error") {
        return Some("replaced by errors".to_owned());
    }
    let status = mapper.status(uuid).ok()??;
    let word = status.split_whitespace().next()?;
    ["Fail", "Error", "Invalid"]
        .contains(&word)
        .then(|| word.to_owned())
}

/// A mount at `path` of a device that is gone.
fn missing_at(path: &Path, devices: &Devices, table: &MountTable) -> Option<Fault> {
    let mount = table.at(path)?;
    if devices.mounts(table).any(|ours| ours.id == mount.id) {
        return None;
    }
    // Of btrfs the number is anonymous.
    let is_there =
        mount.device.major == 0 || Path::new(&format!("/sys/dev/block/{}", mount.device)).exists();
    (!is_there).then(|| {
        Fault::new(
            Reason::DeviceMissing,
            format!(
                "the block device that is mounted on {} is gone; unpublish and unstage the volume",
                path.display()
            ),
        )
    })
}

/// What is wrong with a mounted file system.
pub(crate) fn of_mount(mount: &Mount) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !mount.read_only && (mount.is_file_system_read_only() || mount.has_option("emergency_ro")) {
        faults.push(Fault::new(
            Reason::FileSystemReadOnly,
            "the file system of the volume became read-only; check the kernel log",
        ));
    }
    // A file system that has shut down still reports its usage.
    if let Err(error) = fs::symlink_metadata(&mount.target) {
        faults.push(Fault::new(
            Reason::FileSystemShutDown,
            format!(
                "the file system of the volume does not respond; check the kernel log: {error}"
            ),
        ));
    }
    if let Some(errors) = fs_errors::errors_of(mount) {
        faults.push(Fault::new(Reason::FileSystemErrors, errors));
    }
    faults
}
