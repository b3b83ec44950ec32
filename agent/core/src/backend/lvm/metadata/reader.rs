//! Reading the disks of a volume group: one small read of each tells whether anything has changed.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    VolumeGroup,
    disk::{Disk, TextLocation},
};
use crate::{Error, Kind, Result};

/// The disks of a volume group, and what was last read from them.
#[derive(Debug)]
pub(in crate::backend::lvm) struct Reader {
    disks: Vec<(PathBuf, Disk)>,
    last: Option<(Vec<Seen>, Arc<VolumeGroup>)>,
}

/// What a look at a disk has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// It cannot be read.
    Nothing,
    /// It keeps no copy of the text.
    NoText,
    /// It has a text.
    Text(TextLocation),
}

impl Reader {
    /// A reader of the physical volumes at these paths.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when one cannot be read.
    pub(in crate::backend::lvm) fn new(paths: Vec<PathBuf>) -> Result<Self> {
        let disks: Result<Vec<_>> = paths
            .into_iter()
            .map(|path| Disk::open(&path).map(|disk| (path, disk)))
            .collect();
        Ok(Self {
            disks: disks?,
            last: None,
        })
    }

    /// The volume group now; none when no disk is of one any more, or it was given to another host since it was first read:
    /// LVM knows whether it may be used. Waits for nobody: a change that is going on is seen whole or not at all.
    ///
    /// # Errors
    /// `Io` when no text can be read, [`Kind::Precondition`] when the disks are of several groups.
    pub(in crate::backend::lvm) fn read(&mut self) -> Result<Option<Arc<VolumeGroup>>> {
        /// Between a place and its text a change, and another, may have come.
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
                // What has changed meanwhile is read again the next time.
                self.last = Some((seen, Arc::clone(&group)));
                return Ok(Some(group));
            }
        }
        Err(Error::new(
            Kind::Io,
            format!("could not read the LVM metadata on {}", self.names()),
        ))
    }

    /// Closes disks that have left the group: whoever takes one away (cryptsetup, mdadm, multipath) finds it in use as
    /// long as it is open. Gives back what was seen of those that stay.
    fn close_those_not_of(&mut self, group: &VolumeGroup, seen: Vec<Seen>) -> Vec<Seen> {
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

    /// The text with the highest number: a disk that was away has an old one.
    fn newest(&self, seen: &[Seen]) -> Result<Option<VolumeGroup>> {
        let present = |uuid: &str| {
            let mut disks = self.disks.iter().zip(seen);
            disks.any(|((_, disk), seen)| disk.uuid == uuid && *seen != Seen::Nothing)
        };
        let mut newest: Option<(&Path, VolumeGroup)> = None;
        let mut known = HashSet::new();
        let mut is_moving = false;
        for ((path, disk), seen) in self.disks.iter().zip(seen) {
            let Seen::Text(spot) = seen else { continue };
            // Disks in step have the same text, which is told by its sum.
            if known.contains(&spot.sum()) {
                continue;
            }
            let Ok(Some(text)) = disk.text(*spot) else {
                is_moving = true;
                continue;
            };
            known.insert(spot.sum());
            let group = VolumeGroup::parse(&text, present).map_err(|why| {
                Error::new(
                    Kind::Io,
                    format!(
                        "could not parse the LVM metadata on {}: {why}",
                        path.display()
                    ),
                )
            })?;
            match &newest {
                // Their numbers say nothing of each other.
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

    /// The uuid and the path of each disk.
    pub(in crate::backend::lvm) fn paths(&self) -> Vec<(String, PathBuf)> {
        let disks = self.disks.iter();
        disks
            .map(|(path, disk)| (disk.uuid.clone(), path.clone()))
            .collect()
    }

    /// The paths of the disks, for people.
    pub(in crate::backend::lvm) fn names(&self) -> String {
        let paths = self
            .disks
            .iter()
            .map(|(path, _)| path.display().to_string());
        paths.collect::<Vec<_>>().join(", ")
    }

    /// Whether these are all the disks that a group has, and all could be read.
    pub(in crate::backend::lvm) fn has_all_of(&self, group: &VolumeGroup) -> bool {
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
