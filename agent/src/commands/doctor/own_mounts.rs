//! The mounts of volumes: of file systems on their devices, and of the devices themselves.

use std::path::{Path, PathBuf};

use drumlin_core::host::{DeviceNumber, Mount, MountTable, crypt_mapping, loop_device};

use super::{logical_volumes::LogicalVolumes, mapped_devices, subject::Subject};

/// A mount of a volume.
#[derive(Debug, Clone)]
pub(super) struct OwnMount {
    /// As the mount table has it.
    pub(super) mount: Mount,
    /// The device of the volume.
    pub(super) device: PathBuf,
    /// The image that is gone, of a directory class.
    pub(super) lost_image: Option<PathBuf>,
}

/// The mounts of all volumes.
///
/// # Errors
/// What cannot be read.
pub(super) fn find(subject: &Subject, table: &MountTable) -> Result<Vec<OwnMount>, String> {
    let mut found = of_images(subject, table)?;
    found.extend(of_logical_volumes(subject, table));
    Ok(found)
}

/// The mounts of images of directory classes.
fn of_images(subject: &Subject, table: &MountTable) -> Result<Vec<OwnMount>, String> {
    let mut found = Vec::new();
    for (_, settings) in subject.directories() {
        let devices = loop_device::list_below(&settings.path).map_err(|error| error.chain())?;
        for device in devices {
            let (image, is_lost) = (&device.backing.path, device.backing.deleted);
            // The mapping of an encrypted image is what is mounted.
            let mapping = crypt_mapping::over_path(&device.path).ok().flatten();
            let used = mapping.map_or_else(|| device.path.clone(), |mapping| mapping.path());
            let Ok(number) = DeviceNumber::of_block_device(&used) else {
                // It was detached just now.
                continue;
            };
            let mounts = table.of_block_device(&used, number);
            found.extend(mounts.map(|mount| OwnMount {
                mount: mount.clone(),
                device: device.path.clone(),
                lost_image: is_lost.then(|| image.clone()),
            }));
        }
    }
    Ok(found)
}

/// The mounts of the logical volumes of LVM classes, adopted ones too.
fn of_logical_volumes(subject: &Subject, table: &MountTable) -> Vec<OwnMount> {
    if subject.volume_groups().next().is_none() {
        return Vec::new();
    }
    let volumes = LogicalVolumes::of(subject);
    let mounts = table.iter().filter_map(|mount| {
        let number = device_of(mount)?;
        let device = mapped_devices::at(number)?;
        let is_ours = volumes.has(&device) || {
            device.name.starts_with(crypt_mapping::NAME)
                && mapped_devices::below(number)
                    .filter_map(mapped_devices::at)
                    .any(|below| volumes.has(&below))
        };
        is_ours.then(|| OwnMount {
            mount: mount.clone(),
            device: Path::new("/dev/mapper").join(&device.name),
            lost_image: None,
        })
    });
    mounts.collect()
}

/// The number of the device of a mount, if it is on one.
fn device_of(mount: &Mount) -> Option<DeviceNumber> {
    if mount.device.major != 0 {
        return Some(mount.device);
    }
    // btrfs has an anonymous number.
    let source = Path::new(&mount.source);
    let is_device = source.starts_with("/dev");
    is_device
        .then(|| DeviceNumber::of_block_device(source).ok())
        .flatten()
}

/// The mount that hides `mount` from whoever opens its path, if one does.
pub(super) fn hidden_by<'a>(table: &'a MountTable, mount: &Mount) -> Option<&'a Mount> {
    let on = table
        .iter()
        .find(|other| other.parent == mount.id && other.target == mount.target);
    if on.is_some() {
        return on;
    }
    // On the way to it, something is mounted over a directory above it.
    let mut child = mount;
    loop {
        let parent = table.by_id(child.parent)?;
        let above = table.iter().find(|other| {
            other.parent == parent.id
                && other.id != child.id
                && other.id != parent.id
                && mount.target != other.target
                && mount.target.starts_with(&other.target)
                && other.target.starts_with(&parent.target)
                && child.target.starts_with(&other.target)
        });
        if above.is_some() {
            return above;
        }
        if parent.id == child.id {
            return None;
        }
        child = table.by_id(parent.id)?;
        if child.parent == child.id {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hides(lines: &str, id: u64) -> Option<u64> {
        let table = MountTable::parse(lines.as_bytes()).unwrap();
        hidden_by(&table, table.by_id(id).unwrap()).map(|mount| mount.id)
    }

    #[test]
    fn a_mount_is_hidden_by_one_on_it_or_on_a_directory_above_it() {
        let lines = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
            2 1 8:2 / /srv rw - ext4 /dev/b rw\n\
            3 2 8:3 / /srv/a rw - ext4 /dev/c rw\n\
            4 2 8:4 / /srv/b rw - ext4 /dev/d rw\n\
            5 4 8:5 / /srv/b rw - ext4 /dev/e rw\n";
        assert_eq!(hides(lines, 3), None);
        assert_eq!(hides(lines, 4), Some(5));
        assert_eq!(hides(lines, 5), None);
        let over = format!("{lines}6 2 8:6 / /srv rw - tmpfs none rw\n");
        assert_eq!(hides(&over, 3), Some(6));
        assert_eq!(hides(&over, 5), Some(6));
        assert_eq!(hides(&over, 6), None);
        let root = format!("{lines}7 1 8:6 / /sr rw - tmpfs none rw\n");
        assert_eq!(hides(&root, 3), None);
    }
}
