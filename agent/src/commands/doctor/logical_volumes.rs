//! The logical volumes of the agents, by what their devices are: an adopted volume keeps its name, and a volume that was
//! handed over has lost its tags.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use drumlin_core::backend::lvm::{Owned, owned};
use drumlin_lvm::metadata;

use super::{mapped_devices::MappedName, subject::Subject};

/// Time for a disk to answer.
const PATIENCE: Duration = Duration::from_secs(4);

/// The logical volumes with tags of an agent, in the volume groups of the classes.
#[derive(Debug, Default)]
pub(super) struct LogicalVolumes {
    /// By the UUIDs of their devices.
    volumes: BTreeMap<String, Owned>,
    /// How the names of devices begin that the agent creates in groups that could not be read.
    unread: Vec<String>,
}

impl LogicalVolumes {
    /// Reads the metadata from the disks. What cannot be read is a finding of the volume groups.
    pub(super) fn of(subject: &Subject) -> Self {
        let groups = subject.volume_groups();
        let names: BTreeSet<String> = groups
            .map(|(_, settings)| settings.volume_group.clone())
            .collect();
        if names.is_empty() {
            return Self::default();
        }
        let found = metadata::scan(&names, PATIENCE).unwrap_or_default().groups;
        let mut volumes = BTreeMap::new();
        for group in &found {
            let group = &group.metadata;
            let own = group.volumes.values().filter_map(|volume| {
                let own = owned(volume)?;
                Some((group.mapped_uuid(volume), own))
            });
            volumes.extend(own);
        }
        let is_read = |name: &&String| found.iter().any(|group| group.metadata.name == **name);
        let unread = names.iter().filter(|name| !is_read(name));
        Self {
            volumes,
            unread: unread.map(|name| mapped_prefix(name)).collect(),
        }
    }

    /// The volume that a device is.
    pub(super) fn find(&self, device: &MappedName) -> Option<&Owned> {
        self.volumes.get(&device.uuid)
    }

    /// Returns true if a device is one of the volumes, as far as they are known.
    pub(super) fn has(&self, device: &MappedName) -> bool {
        let mut unread = self.unread.iter();
        self.find(device).is_some() || unread.any(|prefix| device.name.starts_with(prefix))
    }
}

/// How the names of the devices begin that the agent creates in a group: device-mapper's names double each `-`.
fn mapped_prefix(group: &str) -> String {
    format!("{}-dl--", group.replace('-', "--"))
}
