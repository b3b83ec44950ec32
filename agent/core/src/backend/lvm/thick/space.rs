//! How much of a volume group is allocated.

use drumlin_lvm::{Extents, metadata::GroupMetadata};

use crate::backend::{
    Space,
    lvm::Lvm,
    utilization::{percent, sum},
};

impl Lvm {
    /// The space of the volume group, and what the volumes and snapshots of the class have of it.
    pub(crate) fn group_space(&self, now: &GroupMetadata) -> Space {
        let all: Extents = now.disks.values().map(|disk| disk.extents).sum();
        let free: Extents = now.disks.values().map(|disk| disk.free).sum();
        let deleting = self.ours(now).filter(|ours| ours.tags.is_deleting);
        // On all of their legs, as the free extents are of all disks.
        let areas = deleting.flat_map(|ours| now.areas(ours.volume, |_| true));
        let deleting: Extents = areas.map(|area| area.count).sum();
        Space {
            size: sum([all.bytes(now.extent_size)]),
            promised: sum(self.ours(now).map(|ours| now.bytes(ours.volume))),
            data_percent: Some(percent(all.less(free).0, all.0)),
            deleting_percent: percent(deleting.0, all.0),
            metadata_percent: None,
        }
    }
}
