//! Reads the disks of a volume group: one small read of each shows whether anything has changed.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    GroupMetadata,
    disk::{Disk, TextLocation},
};
use crate::{Error, Kind, Result};

/// The disks of a volume group, and the last result read from them.
#[derive(Debug)]
pub struct Reader {
    disks: Vec<(PathBuf, Disk)>,
    last: Option<(Vec<Seen>, Arc<GroupMetadata>)>,
}

/// The result of reading a disk's location sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// The disk cannot be read.
    Nothing,
    /// The disk keeps no copy of the text.
    NoText,
    /// The disk has a text.
    Text(TextLocation),
}

impl Reader {
    /// A reader of the physical volumes at these paths.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when one cannot be read.
    pub fn new(paths: Vec<PathBuf>) -> Result<Self> {
        let disks: Result<Vec<_>> = paths
            .into_iter()
            .map(|path| Disk::open(&path).map(|disk| (path, disk)))
            .collect();
        Ok(Self {
            disks: disks?,
            last: None,
        })
    }

    /// The current metadata; none when no disk belongs to a group any more, or the group was given to another host
    /// since the first read: LVM decides whether it may be used. Never waits: a change in progress is seen completely
    /// or not at all.
    ///
    /// # Errors
    /// `Io` when no text can be read, [`Kind::Precondition`] when the disks belong to several groups.
    pub fn read(&mut self) -> Result<Option<Arc<GroupMetadata>>> {
        /// Maximum number of attempts: the text can be overwritten between reading its location and reading it.
        const ATTEMPTS: usize = 100;
        for _ in 0..ATTEMPTS {
            let seen = self.look();
            if let Some((before, group)) = &self.last
                && *before == seen
            {
                return Ok(Some(Arc::clone(group)));
            }
            if !seen.iter().any(|seen| matches!(seen, Seen::Text(_))) {
                return Ok(None);
            }
            if let Some(group) = self.newest(&seen)? {
                let mut before = self.last.iter().map(|(_, group)| group);
                if before.any(|before| before.system_id != group.system_id) {
                    return Ok(None);
                }
                let group = Arc::new(group);
                let seen = self.close_those_not_of(&group, seen);
                // Later changes are read the next time.
                self.last = Some((seen, Arc::clone(&group)));
                return Ok(Some(group));
            }
        }
        Err(Error::new(
            Kind::Io,
            format!("could not read the LVM metadata on {}", self.names()),
        ))
    }

    /// Closes disks that have left the group: other programs (cryptsetup, mdadm, multipath) cannot take a disk while
    /// it is open. Returns the results of the remaining disks.
    fn close_those_not_of(&mut self, group: &GroupMetadata, seen: Vec<Seen>) -> Vec<Seen> {
        let is_its_own = |disk: &Disk| {
            let mut disks = group.disks.values();
            disks.any(|known| known.uuid == disk.uuid)
        };
        let disks = std::mem::take(&mut self.disks);
        let stay = disks.into_iter().zip(seen);
        let (disks, seen) = stay.filter(|((_, disk), _)| is_its_own(disk)).unzip();
        self.disks = disks;
        seen
    }

    fn look(&self) -> Vec<Seen> {
        let seen = self.disks.iter().map(|(_, disk)| match disk.spot() {
            Ok(Some(spot)) => Seen::Text(spot),
            Ok(None) => Seen::NoText,
            Err(_) => Seen::Nothing,
        });
        seen.collect()
    }

    /// The text with the highest sequence number: a disk that was disconnected has an old one.
    fn newest(&self, seen: &[Seen]) -> Result<Option<GroupMetadata>> {
        let present = |uuid: &str| {
            let mut disks = self.disks.iter().zip(seen);
            disks.any(|((_, disk), seen)| disk.uuid == uuid && *seen != Seen::Nothing)
        };
        let mut newest: Option<(&Path, GroupMetadata)> = None;
        let mut known = HashSet::new();
        let mut is_moving = false;
        for ((path, disk), seen) in self.disks.iter().zip(seen) {
            let Seen::Text(spot) = seen else { continue };
            // Disks in step have the same text, recognised by its checksum.
            if known.contains(&spot.sum()) {
                continue;
            }
            let Ok(Some(text)) = disk.text(*spot) else {
                is_moving = true;
                continue;
            };
            known.insert(spot.sum());
            let group = GroupMetadata::parse(&text, present).map_err(|why| {
                Error::new(
                    Kind::Io,
                    format!(
                        "could not parse the LVM metadata on {}: {why}",
                        path.display()
                    ),
                )
            })?;
            match &newest {
                // Their sequence numbers are not comparable.
                Some((other, newest)) if newest.uuid != group.uuid => {
                    return Err(Error::new(
                        Kind::Precondition,
                        format!(
                            "{} and {} belong to different volume groups, {} ({}) and {} ({})",
                            other.display(),
                            path.display(),
                            newest.name,
                            newest.uuid,
                            group.name,
                            group.uuid
                        ),
                    ));
                }
                Some((_, newest)) if newest.sequence >= group.sequence => {}
                _ => newest = Some((path, group)),
            }
        }
        let mut newest = newest.map(|(_, group)| group);
        let texts = seen.iter().filter_map(|seen| match seen {
            Seen::Text(spot) => Some(spot.largest()),
            Seen::Nothing | Seen::NoText => None,
        });
        let largest = texts.min();
        if let (Some(newest), Some(largest)) = (&mut newest, largest) {
            newest.largest_text = largest;
        }
        Ok(newest.filter(|_| !is_moving))
    }

    /// The UUID and the path of each disk.
    pub fn paths(&self) -> Vec<(String, PathBuf)> {
        let disks = self.disks.iter();
        disks
            .map(|(path, disk)| (disk.uuid.clone(), path.clone()))
            .collect()
    }

    /// The paths of the disks, for messages.
    pub fn names(&self) -> String {
        let paths = self
            .disks
            .iter()
            .map(|(path, _)| path.display().to_string());
        paths.collect::<Vec<_>>().join(", ")
    }

    /// Returns true if these are all the disks of a group, and all could be read.
    pub fn has_all_of(&self, group: &GroupMetadata) -> bool {
        let seen = self.last.iter().flat_map(|(seen, _)| seen);
        if seen.into_iter().any(|seen| *seen == Seen::Nothing) {
            return false;
        }
        group
            .disks
            .values()
            .all(|wanted| self.disks.iter().any(|(_, disk)| disk.uuid == wanted.uuid))
    }
}
