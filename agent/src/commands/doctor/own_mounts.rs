//! The mounts of volumes: of file systems on their devices, and of the devices themselves.

use std::{
    fs,
    path::{Path, PathBuf},
};

use drumlin_core::host::{DeviceNumber, Mount, MountTable, crypt_mapping, loop_device};

use super::subject::Subject;

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
    let groups = subject.volume_groups();
    let prefixes: Vec<String> = groups
        .map(|(_, settings)| mapped_prefix(&settings.volume_group))
        .collect();
    if prefixes.is_empty() {
        return Ok(found);
    }
    for mount in table.iter() {
        let name = mapped_name(mount);
        let has_prefix = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let is_ours = |name: &String| {
            has_prefix(name) || names_below(name).iter().any(|below| has_prefix(below))
        };
        if let Some(name) = name.filter(is_ours) {
            found.push(OwnMount {
                mount: mount.clone(),
                device: Path::new("/dev/mapper").join(name),
                lost_image: None,
            });
        }
    }
    Ok(found)
}

/// The beginning of the names that device-mapper has for our volumes of a group: each `-` is doubled.
fn mapped_prefix(group: &str) -> String {
    format!("{}-dl--", group.replace('-', "--"))
}

/// The names of the devices below the mapping of an encrypted volume; none for any other device.
fn names_below(name: &str) -> Vec<String> {
    if !name.starts_with(crypt_mapping::NAME) {
        return Vec::new();
    }
    let path = Path::new("/dev/mapper").join(name);
    let Ok(number) = DeviceNumber::of_block_device(&path) else {
        return Vec::new();
    };
    let below = fs::read_dir(format!("/sys/dev/block/{number}/slaves"));
    let below = below.into_iter().flatten().flatten();
    let names = below.filter_map(|below| fs::read_to_string(below.path().join("dm/name")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

/// The name of the device-mapper device of a mount, if it is on one.
fn mapped_name(mount: &Mount) -> Option<String> {
    let name_of = |number: DeviceNumber| {
        let name = fs::read_to_string(format!("/sys/dev/block/{number}/dm/name")).ok()?;
        Some(name.trim().to_owned())
    };
    if mount.device.major != 0 {
        return name_of(mount.device);
    }
    // btrfs has an anonymous number.
    let source = Path::new(&mount.source);
    let is_device = source.starts_with("/dev");
    is_device
        .then(|| DeviceNumber::of_block_device(source).ok())?
        .and_then(name_of)
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
