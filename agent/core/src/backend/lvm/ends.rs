//! The end that a thick volume grows by: wiped as a volume of its own, before the extents are the volume's.
//!
//! What a volume has in LVM's record anybody may show: a reload of its device by `pvmove` or `lvchange --refresh`, or an
//! activation at the next boot. So its record gets nothing that is not wiped. LVM cannot give a volume the extents of another
//! one; they are free for a moment, and the volume takes exactly them.

use super::{
    Lvm, NOTES, Ours, Thick, end_of,
    group::Group,
    metadata::{Area, LogicalVolume, VolumeGroup},
    program::Command,
    tags::Tags,
    thick::check_disks,
};
use crate::{Error, Kind, Result, fail, types::ImageId};

/// Extents that are wiped and free.
#[derive(Debug)]
pub(super) struct CleanEnd {
    /// Where they are, as `lvextend` takes it: `/dev/sda:10-19`, the last one included.
    places: Vec<String>,
    /// The number of the group's record just before they were free.
    sequence: u64,
}

/// So many changes of others are too few to use the extents and to make them free again.
const FOREIGN: u64 = 1;

impl CleanEnd {
    /// The command that extends a volume, by these extents and no others. Since they are free we make so many changes before
    /// it ourselves.
    pub(super) fn taken_by(&self, extension: Command, own: u64) -> Command {
        let freeing = 1;
        let latest = self.sequence + freeing + own + FOREIGN;
        let taken = extension.words(self.places.iter().cloned());
        taken.allowed_by(move |now| {
            if now.sequence <= latest {
                return Ok(());
            }
            Err(Error::new(
                Kind::Busy,
                format!(
                    "volume group {} was changed while a volume was to grow in it; ask again",
                    now.name
                ),
            ))
        })
    }
}

impl Lvm {
    /// Finds room for the end of a volume, of so many bytes, and wipes it. What an interrupted growth has left goes first.
    ///
    /// # Errors
    /// `NoSpace`; `HalfDone` when the agent ends before; `Busy` when somebody else was at it.
    pub(super) async fn clean_end(
        &self,
        thick: &Thick,
        found: &Ours<'_>,
        bytes: u64,
    ) -> Result<CleanEnd> {
        let id = found.tags.id;
        self.remove_end(id).await?;
        let now = self.group.now().await?;
        check_disks(&now, thick)?;
        let tags = Tags {
            is_undone: true,
            ..Tags::new(
                id,
                self.settings.class.as_str(),
                self.settings.node.as_str(),
            )
        };
        let make = self.thick_called(end_of(id), thick, &tags, bytes);
        self.group.change(vec![make]).await?;
        fail::point("thick.end.made");
        let now = self.group.now().await?;
        let device = self.activate(&now, end_in(&now, id)?).await?;
        self.wipe(id, thick.wipe, device, 0..bytes).await?;
        fail::point("thick.end.wiped");
        // Somebody may have moved it meanwhile.
        let now = self.group.now().await?;
        let clean = CleanEnd {
            places: self.group.places(&now, end_in(&now, id)?)?,
            sequence: now.sequence,
        };
        self.remove_end(id).await?;
        fail::point("thick.end.freed");
        Ok(clean)
    }

    /// Removes what was to become the end of a volume, if it is there.
    pub(super) async fn remove_end(&self, id: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        match end_in(&now, id) {
            Ok(end) => self.group.change(vec![self.removal(end)]).await,
            Err(_) => Ok(()),
        }
    }
}

fn end_in(now: &VolumeGroup, id: ImageId) -> Result<&LogicalVolume> {
    now.volumes.get(&end_of(id)).ok_or_else(|| {
        Error::new(
            Kind::Busy,
            format!(
                "somebody removed {} while it was wiped; ask again",
                end_of(id)
            ),
        )
    })
}

impl Group {
    /// Where the extents of a volume are, as LVM's commands take it.
    fn places(&self, now: &VolumeGroup, volume: &LogicalVolume) -> Result<Vec<String>> {
        let place = |area: Area| {
            let known = now.disks.get(&area.disk);
            let path = known.and_then(|disk| self.disk(&disk.uuid));
            let path = path.ok_or_else(|| {
                Error::new(
                    Kind::Precondition,
                    format!("a disk of volume group {} is missing", now.name),
                )
            })?;
            let last = area.start + area.count - 1;
            Ok(format!("{}:{}-{last}", path.display(), area.start))
        };
        // The notes that mirrors keep of themselves stay free.
        let areas = now.areas(volume, |part| !part.contains(NOTES));
        areas.into_iter().map(place).collect()
    }
}
