//! The decrypted devices of encrypted images: dm-crypt mappings that cryptsetup opens over the device of an image.
//!
//! A mapping is found from the device below it, as the kernel shows it in sysfs, never by its name alone: another
//! program may have taken the name. Its UUID, which cryptsetup makes of its type and its name, shows that it is one of
//! this agent.

use std::{fs, path::Path, path::PathBuf};

use crate::{
    DeviceNumber, Error, Result, Sectors,
    device_mapper::{DeviceMapper, Mapped},
};

/// Prefix of the names of the mappings of this agent.
pub const NAME: &str = "drumlin-";
/// Prefix of the UUIDs that cryptsetup gives to LUKS2 mappings (`dm_prepare_uuid` of libdevmapper.c).
const UUID: &str = "CRYPT-LUKS2-";

/// The live mapping over a block device, if it has one of this agent's.
pub fn over(device: DeviceNumber) -> Result<Option<Mapped>> {
    let Some(uuid) = uuid_over(device) else {
        return Ok(None);
    };
    let found = DeviceMapper::open()?.find(&uuid)?;
    Ok(found.filter(|mapping| mapping.is_live))
}

/// The live mapping over the block device at `path`, if it has one of this agent's.
///
/// # Errors
/// `Io` when `path` is not a block device.
pub fn over_path(path: &Path) -> Result<Option<Mapped>> {
    over(DeviceNumber::of_block_device(path)?)
}

/// The device that the users of a block device use: the mapping over it, or itself.
pub fn uppermost(device: &Path) -> Result<PathBuf> {
    match over_path(device)? {
        Some(mapping) => mapping.node(),
        None => Ok(device.to_owned()),
    }
}

/// All mappings of this agent's naming, of other agents of this host, too.
pub fn list() -> Result<Vec<Mapped>> {
    let all = DeviceMapper::open()?.list(UUID)?;
    let ours = all.into_iter().filter(|one| is_ours(&one.uuid, &one.name));
    Ok(ours.collect())
}

/// The length of a mapping.
pub fn length(mapping: &Mapped) -> Result<Sectors> {
    let table = DeviceMapper::open()?.table(&mapping.uuid)?;
    Ok(table.iter().map(|line| line.length).sum())
}

/// The length of the block device at `path`.
pub fn length_of(path: &Path) -> Result<Sectors> {
    length_below(DeviceNumber::of_block_device(path)?)
}

/// The length of a block device, as the kernel knows it now.
pub fn length_below(device: DeviceNumber) -> Result<Sectors> {
    let path = format!("/sys/dev/block/{device}/size");
    let text = fs::read_to_string(&path)
        .map_err(|error| Error::io(format!("could not read {path}"), error))?;
    text.trim().parse().map_err(|_| {
        let error = std::io::Error::from(std::io::ErrorKind::InvalidData);
        Error::io(format!("could not understand {path}"), error)
    })
}

/// The UUID of the mapping over a device, by what the kernel lists above it.
fn uuid_over(device: DeviceNumber) -> Option<String> {
    let above = fs::read_dir(format!("/sys/dev/block/{device}/holders")).ok()?;
    above.flatten().find_map(|entry| {
        let read = |file: &str| {
            let text = fs::read_to_string(entry.path().join("dm").join(file)).ok()?;
            Some(text.trim_end().to_owned())
        };
        let (uuid, name) = (read("uuid")?, read("name")?);
        is_ours(&uuid, &name).then_some(uuid)
    })
}

/// Returns true for a mapping of this agent: the name has its prefix, and the UUID is that of a LUKS2 mapping of this
/// name.
fn is_ours(uuid: &str, name: &str) -> bool {
    name.starts_with(NAME)
        && uuid
            .strip_prefix(UUID)
            .and_then(|rest| rest.strip_suffix(name))
            .is_some_and(|rest| rest.ends_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_known_by_its_name_and_its_uuid() {
        let name = "drumlin-8376b776-75f9-4786-8311-f8780adfabdb-00c0ffee";
        let uuid = format!("CRYPT-LUKS2-d9fbcd4e4ccc4e51bc3ce0c950325967-{name}");
        assert!(is_ours(&uuid, name));
        for (uuid, name) in [
            (uuid.as_str(), "drumlin-other"),
            ("CRYPT-LUKS2-d9fb-root", "root"),
            ("CRYPT-LUKS1-d9fb-drumlin-a", "drumlin-a"),
            ("CRYPT-LUKS2-drumlin-a", "drumlin-a-b"),
            ("LVM-drumlin-a", "drumlin-a"),
        ] {
            assert!(!is_ours(uuid, name), "{uuid} {name}");
        }
    }
}
