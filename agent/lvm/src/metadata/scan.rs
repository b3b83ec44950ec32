//! Finds volume groups by reading all disks, without LVM: it takes no lock, starts no program, and sees disks that LVM's
//! settings hide.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    GroupMetadata, Reader,
    disk::{Disk, TextLocation},
};
use crate::{
    Error, Result,
    host::{
        crypt_mapping,
        read_probe::{self, Pending},
    },
};

const BLOCKS: &str = "/sys/class/block";

/// The volume groups of this host.
#[derive(Debug, Default)]
pub struct Scan {
    /// Each group with the disks that were found of it.
    pub groups: Vec<FoundGroup>,
    /// Disks that did not answer in time.
    pub silent: Vec<PathBuf>,
    /// Disks that are suspended, and were not read.
    pub suspended: Vec<PathBuf>,
}

/// A volume group, as its disks have it.
#[derive(Debug, Clone)]
pub struct FoundGroup {
    /// What its metadata says.
    pub metadata: Arc<GroupMetadata>,
    /// The UUID, without dashes, and the path of each disk that was found.
    pub disks: Vec<(String, PathBuf)>,
}

/// A physical volume and its text.
struct Found {
    path: PathBuf,
    uuid: String,
    text: Option<String>,
}

/// Reads all disks that answer within `patience`, and returns the groups of these names.
///
/// # Errors
/// When the list of block devices, or the metadata of a group of these names, cannot be read.
pub fn scan(names: &BTreeSet<String>, patience: Duration) -> Result<Scan> {
    let mut scan = Scan::default();
    let disks = disks(&mut scan.suspended)?;
    let answering = answering(disks, patience, &mut scan.silent);
    let found: Vec<Found> = answering.iter().filter_map(|path| read(path)).collect();
    let mut texts: BTreeMap<String, GroupMetadata> = BTreeMap::new();
    for one in &found {
        let parsed = one.text.as_deref().map(|text| {
            GroupMetadata::parse(text, |uuid| found.iter().any(|disk| disk.uuid == uuid))
        });
        let Some(Ok(group)) = parsed else { continue };
        let known = texts.get(&group.uuid);
        if names.contains(&group.name) && known.is_none_or(|known| known.sequence < group.sequence)
        {
            texts.insert(group.uuid.clone(), group);
        }
    }
    for group in texts.values() {
        let is_ours = |one: &&Found| group.disks.values().any(|disk| disk.uuid == one.uuid);
        let mut paths: BTreeMap<&str, &Path> = BTreeMap::new();
        for one in found.iter().filter(is_ours) {
            // A disk of several paths is found below and above them; a name of device-mapper's comes first here.
            paths.entry(&one.uuid).or_insert(&one.path);
        }
        let mut reader = Reader::new(paths.values().map(|path| (*path).to_owned()).collect())?;
        if let Some(metadata) = reader.read()? {
            let disks = reader.paths();
            scan.groups.push(FoundGroup { metadata, disks });
        }
    }
    Ok(scan)
}

/// The block devices that can be physical volumes, those of device-mapper first: no logical volumes, no decrypted devices of
/// ours, in which a user may have written the header of any disk, nothing without a size, and nothing that is suspended.
fn disks(suspended: &mut Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io(format!("could not read {BLOCKS}"), error);
    let (mut mapped, mut others) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(BLOCKS).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let path = Path::new("/dev").join(entry.file_name());
        let is_of_user =
            read("dm/uuid").starts_with("LVM-") || read("dm/name").starts_with(crypt_mapping::NAME);
        if is_of_user || ["", "0"].contains(&read("size").trim()) {
            continue;
        }
        if read("dm/suspended").trim() == "1" {
            suspended.push(path);
        } else if entry.path().join("dm").exists() {
            mapped.push(path);
        } else {
            others.push(path);
        }
    }
    mapped.sort_unstable();
    others.sort_unstable();
    mapped.append(&mut others);
    Ok(mapped)
}

/// The disks that answer in time.
fn answering(
    mut disks: Vec<PathBuf>,
    patience: Duration,
    silent: &mut Vec<PathBuf>,
) -> Vec<PathBuf> {
    let mut numbers = BTreeMap::new();
    for path in &disks {
        if let Ok(number) = read_probe::number(path) {
            read_probe::begin(path.clone(), number);
            numbers.insert(path.clone(), number);
        }
    }
    let pending = read_probe::wait_until(Instant::now() + patience, Pending::is_empty);
    disks.retain(|path| {
        let number = numbers.get(path);
        let is_silent = number.is_some_and(|number| pending.contains_key(number));
        if is_silent {
            silent.push(path.clone());
        }
        number.is_some() && !is_silent
    });
    disks
}

/// The physical volume at `path`, if it is one.
fn read(path: &Path) -> Option<Found> {
    /// How often: the text can be overwritten between reading its location and reading it.
    const ATTEMPTS: usize = 10;
    let disk = Disk::open(path).ok()?;
    let text = |location: TextLocation| disk.text(location).ok().flatten();
    let text = (0..ATTEMPTS).find_map(|_| text(disk.spot().ok().flatten()?));
    Some(Found {
        path: path.to_owned(),
        uuid: disk.uuid.clone(),
        text,
    })
}
