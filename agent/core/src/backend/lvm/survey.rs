//! What the tags of a volume group say to who looks at it from outside of the agent.

use drumlin_lvm::metadata::{GroupMetadata, LogicalVolume};

use super::{
    group_records::wrong_records,
    group_snapshot::HIDDEN,
    tags::{Tags, wrong},
    thin::orphan_thin_devices::is_set_aside,
};
use crate::{backend::Labels, types::ImageId};

/// A logical volume of some agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// The image that it is.
    pub id: ImageId,
    /// The class that created it.
    pub class: String,
    /// The node that created it.
    pub node: String,
    /// The labels of the image.
    pub labels: Labels,
    /// What was begun and not ended: its creation or its deletion.
    pub half_made: Option<&'static str>,
    /// Its tags were written by a newer agent.
    pub is_newer: bool,
}

/// What the tags of a logical volume say; none if it is foreign.
pub fn owned(volume: &LogicalVolume) -> Option<Owned> {
    let tags = Tags::read(&volume.tags)?;
    let half_made = match (tags.is_deleting, tags.is_incomplete) {
        (true, _) => Some("deletion"),
        (false, true) => Some("creation"),
        (false, false) => None,
    };
    Some(Owned {
        id: tags.id,
        class: tags.class,
        node: tags.node,
        labels: tags.labels,
        half_made,
        is_newer: tags.is_newer,
    })
}

/// The agent's tags of a logical volume that cannot be parsed.
pub fn wrong_tags(volume: &LogicalVolume) -> Vec<&str> {
    wrong(&volume.tags)
}

/// The agent's tags of a volume group that cannot be parsed.
pub fn wrong_group_tags(group: &GroupMetadata) -> Vec<&str> {
    wrong_records(group)
}

/// Returns true if the volume keeps an orphan thin device.
pub fn keeps_orphan(volume: &LogicalVolume) -> bool {
    is_set_aside(volume)
}

/// The beginning of the device-mapper UUIDs of the agent's own devices in a volume group.
pub fn own_devices(group: &GroupMetadata) -> String {
    format!("{HIDDEN}{}", group.uuid)
}
