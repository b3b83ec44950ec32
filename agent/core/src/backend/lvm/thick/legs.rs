//! Placement of mirror legs: each on separate disks, at creation and whenever the mirror is extended.

use std::{collections::BTreeSet, sync::Arc};

use drumlin_lvm::{
    Extents,
    command::Command,
    metadata::{Area, GroupMetadata, LogicalVolume},
    placement::{self, Row},
};

use crate::{
    Error, Kind, Result,
    backend::lvm::{
        Layout, Lvm, Thick,
        group::Group,
        name_of,
        thick::volumes::{kept, reserved},
    },
    types::ImageId,
};

/// The extents by which the legs of a mirror are extended.
pub(crate) struct MirrorEnd {
    thick: Thick,
    volume: String,
    legs: Vec<BTreeSet<String>>,
    extents: Extents,
    extent_size: u64,
}

impl MirrorEnd {
    /// The extension of a volume by this number of bytes; none if it is not a mirror, or if LVM has to allocate for
    /// its layers as well.
    pub(crate) fn of(
        group: &Group,
        now: &GroupMetadata,
        thick: &Thick,
        volume: &LogicalVolume,
        bytes: u64,
    ) -> Option<Self> {
        let legs = placement::legs(now, volume);
        let is_mirror = !legs.is_empty() && now.layer_of(volume).is_none();
        is_mirror.then(|| Self {
            thick: thick.clone(),
            volume: group.path(&volume.name),
            legs,
            extents: Extents::covering(bytes, now.extent_size),
            extent_size: now.extent_size,
        })
    }

    /// The total of all legs, in bytes.
    pub(crate) fn bytes_of_all(&self) -> u64 {
        let legs = u64::try_from(self.legs.len()).unwrap_or(u64::MAX);
        self.extents.times(legs).bytes(self.extent_size)
    }

    /// The extents for each leg.
    ///
    /// # Errors
    /// `NoSpace` when a leg would share a disk with another one, or when the reserve would be used.
    pub(crate) fn rows(&self, now: &GroupMetadata) -> Result<Vec<Row>> {
        let free: Extents = now.free().iter().sum();
        let left = free.less(kept(now, &self.thick));
        let rows = placement::longer_legs(now, &self.legs, self.extents);
        let rows = rows.filter(|_| self.bytes_of_all() <= left.bytes(self.extent_size));
        rows.ok_or_else(|| {
            Error::new(
                Kind::NoSpace,
                format!(
                    "volume group {} has no room to extend each leg by {} bytes for {} on disks without another leg of it{}; add a disk with vgextend",
                    now.name,
                    self.extents.bytes(self.extent_size),
                    self.volume,
                    reserved(&self.thick)
                ),
            )
        })
    }
}

impl Lvm {
    /// The command that creates a mirror of this number of bytes, with each leg on a separate disk.
    pub(crate) fn on_disks_of_their_own(
        &self,
        command: Command,
        layout: Layout,
        bytes: u64,
    ) -> Command {
        let group = Arc::clone(&self.group);
        let copies = usize::try_from(layout.disks()).unwrap_or(usize::MAX);
        command.placed_by(move |now| {
            let extents = Extents::covering(bytes, now.extent_size) + placement::NOTE;
            let rows = placement::new_legs(now, copies, extents).ok_or_else(|| {
                Error::new(
                    Kind::NoSpace,
                    format!(
                        "volume group {} does not have {copies} disks with {bytes} free bytes each",
                        now.name
                    ),
                )
            })?;
            group.places(now, placement::by_parts(&rows))
        })
    }

    /// Refuses a new volume that would not survive the loss of one disk.
    pub(crate) async fn check_legs(&self, id: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        let made = now.volumes.get(&name_of(id));
        match made.and_then(|made| self.shared_leg(&now, made)) {
            None => Ok(()),
            Some(why) => Err(Error::new(
                Kind::NoSpace,
                format!("LVM could not allocate the legs of {id}: {why}"),
            )),
        }
    }

    /// The health message of a mirror with several legs on the same disk; none if it has none.
    pub(crate) fn shared_leg(&self, now: &GroupMetadata, volume: &LogicalVolume) -> Option<String> {
        let legs = placement::legs(now, volume);
        let shared = placement::shared_disk(&legs)?;
        let disk = now.disks.get(shared);
        let path = disk.and_then(|disk| self.group.disk(&disk.uuid));
        let disk = path.map_or_else(|| shared.clone(), |path| path.display().to_string());
        Some(format!(
            "several legs of its mirror are on {disk} and would be lost with it; see lvs -a -o +devices {group}, and move one of them with pvmove -n {path}_rimage_1 {disk} OTHER-DISK",
            group = now.name,
            path = self.group.path(&volume.name)
        ))
    }
}

impl Group {
    /// Locations of extents in the syntax of LVM's commands.
    pub(crate) fn places<'a>(
        &self,
        now: &GroupMetadata,
        areas: impl Iterator<Item = &'a Area>,
    ) -> Result<Vec<String>> {
        let place = |area: &Area| {
            let known = now.disks.get(&area.disk);
            let path = known.and_then(|disk| self.disk(&disk.uuid));
            let path = path.ok_or_else(|| {
                Error::new(
                    Kind::Precondition,
                    format!("a disk of volume group {} is missing", now.name),
                )
            })?;
            let last = area.end() - 1;
            Ok(format!("{}:{}-{last}", path.display(), area.start))
        };
        areas.map(place).collect()
    }
}
