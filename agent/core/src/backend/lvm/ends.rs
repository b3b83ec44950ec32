//! The end that a thick volume grows by: wiped as a volume of its own, before the extents are the volume's.
//!
//! What a volume has in LVM's record anybody may show: a reload of its device by `pvmove` or `lvchange --refresh`, or an
//! activation at the next boot. So its record gets nothing that is not wiped. LVM cannot give a volume the extents of another
//! one; they are free for a moment, and the volume takes exactly them.

use std::sync::{Arc, Mutex, PoisonError};

use super::{
    Layout, Lvm, NOTES, OwnVolume, Thick,
    command::{Check, Command},
    create::exists,
    end_of,
    legs::MirrorEnd,
    metadata::{LogicalVolume, VolumeGroup},
    placement::{self, Row},
    tags::Tags,
    thick::{check_disks, check_group_room},
    volume_group::Group,
};
use crate::{
    Error, Kind, Result, fail,
    types::{ImageId, Size},
};

/// So many extents, and where they are, as `lvextend` takes it: `/dev/sda:10-19`, the last one included.
type Places = (u64, Vec<String>);

/// Extents that are wiped and free.
#[derive(Debug)]
pub(super) struct CleanEnd {
    /// What each command takes of them.
    pieces: Vec<Places>,
    /// The name of the group.
    group: String,
    /// The number of the group's record just before they were free.
    sequence: u64,
}

/// What one command adds to the end of a volume.
pub(super) struct EndExtents {
    /// How much longer the volume becomes, in extents; the rest, if nothing is said.
    extents: Option<u64>,
    /// Where they are, as `lvextend` takes it: `/dev/sda:10-19`, the last one included. Where LVM wants, if nothing is said.
    places: Vec<String>,
    /// Refuses what the metadata does not allow any more.
    check: Check,
}

/// So many changes of others are too few to use the extents and to make them free again.
const FOREIGN: u64 = 1;

impl CleanEnd {
    /// By these extents and no others, after so many changes that we make ourselves. Since they are free we make so many
    /// changes before it.
    pub(super) fn taken_after(self, own: u64) -> Vec<EndExtents> {
        let freeing = 1;
        let latest = self.sequence + freeing + own + FOREIGN;
        let pieces = (latest..).zip(self.pieces);
        let piece = |(latest, (extents, places)): (u64, Places)| {
            let name = self.group.clone();
            EndExtents {
                extents: Some(extents),
                places,
                check: Box::new(move |now| unless_changed(now.sequence <= latest, &name)),
            }
        };
        pieces.map(piece).collect()
    }
}

fn unless_changed(is_unchanged: bool, group: &str) -> Result<()> {
    if is_unchanged {
        return Ok(());
    }
    Err(changed_meanwhile(group))
}

/// The error of a volume that was to get extents of which nobody knows any more that they are its.
fn changed_meanwhile(group: &str) -> Error {
    Error::new(
        Kind::Busy,
        format!(
            "volume group {group} was changed by another process before a volume in it was extended; retry"
        ),
    )
}

impl Lvm {
    /// Finds room for the end of a volume, of so many bytes, and wipes it. What an interrupted growth has left goes first.
    ///
    /// # Errors
    /// `NoSpace`; `HalfDone` when the agent ends before; `Busy` when somebody else was at it.
    pub(super) async fn clean_end(
        &self,
        thick: &Thick,
        found: &OwnVolume<'_>,
        bytes: u64,
    ) -> Result<CleanEnd> {
        let id = found.tags.id;
        self.remove_end(id).await?;
        let now = self.group.now().await?;
        check_disks(&now, thick)?;
        let tags = Tags {
            is_incomplete: true,
            ..Tags::new(
                id,
                self.settings.class.as_str(),
                self.settings.node.as_str(),
            )
        };
        let end = MirrorEnd::of(&self.group, &now, thick, found.volume, bytes);
        // What is chosen for the legs of a mirror, at the turn of the command that takes it.
        let chosen: Arc<Mutex<Vec<Row>>> = Arc::default();
        let (layout, make) = if let Some(end) = end {
            (Layout::Linear, self.wiped_end(end, &tags, &chosen))
        } else {
            let layout = thick.layout.of_plain();
            let thick = Thick {
                layout,
                ..thick.clone()
            };
            let make = self.thick_called(end_of(id), &thick, &tags, bytes);
            (layout, make)
        };
        self.group.change(vec![make]).await?;
        fail::point("thick.end.made");
        let now = self.group.now().await?;
        let end = end_in(&now, id)?;
        let (device, length) = (self.activate(&now, end).await?, now.bytes(end));
        self.wipe(id, thick.wipe, device, 0..length).await?;
        fail::point("thick.end.wiped");
        let now = self.group.now().await?;
        let areas = now.areas(end_in(&now, id)?, |part| !part.contains(NOTES));
        let chosen = std::mem::take(&mut *chosen.lock().unwrap_or_else(PoisonError::into_inner));
        let rows = if chosen.is_empty() {
            let parts = usize::try_from(layout.unit()).unwrap_or(1);
            areas.chunks(parts).map(<[_]>::to_vec).collect()
        } else if placement::is_same(placement::by_parts(&chosen), &areas) {
            chosen
        } else {
            // Somebody has moved it.
            return Err(changed_meanwhile(&now.name));
        };
        let clean = CleanEnd {
            pieces: self.group.pieces(&now, &rows, u64::from(layout.unit()))?,
            group: now.name.clone(),
            sequence: now.sequence,
        };
        self.remove_end(id).await?;
        fail::point("thick.end.freed");
        Ok(clean)
    }

    /// The command that makes what is wiped before the legs of a mirror get it: one volume over the extents of all of them.
    fn wiped_end(&self, end: MirrorEnd, tags: &Tags, chosen: &Arc<Mutex<Vec<Row>>>) -> Command {
        let (name, chosen) = (end_of(tags.id), Arc::clone(chosen));
        let group = Arc::clone(&self.group);
        Command::new("lvcreate")
            .words(["-Wy", "-Zy", "-n", &name])
            .words(["-L".to_owned(), format!("{}b", end.bytes_of_all())])
            .add_tags(tags.write())
            .words([&self.group.name])
            .done_when(exists(name))
            .placed_by(move |now| {
                let rows = end.rows(now)?;
                let places = group.places(now, placement::by_parts(&rows))?;
                *chosen.lock().unwrap_or_else(PoisonError::into_inner) = rows;
                Ok(places)
            })
    }

    /// By what a volume grows that is not wiped before.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn unwiped_end(
        &self,
        now: &VolumeGroup,
        thick: &Thick,
        volume: &LogicalVolume,
        bytes: u64,
    ) -> Result<Vec<EndExtents>> {
        let Some(end) = MirrorEnd::of(&self.group, now, thick, volume, bytes) else {
            let (thick, layout) = (thick.clone(), thick.layout.of_plain());
            check_group_room(now, &thick, layout, bytes)?;
            return Ok(vec![EndExtents {
                extents: None,
                places: Vec::new(),
                check: Box::new(move |now| check_group_room(now, &thick, layout, bytes)),
            }]);
        };
        let rows = end.rows(now)?;
        let mut pieces = Vec::new();
        for step in placement::by_disks(&rows) {
            let step = step.to_vec();
            let name = now.name.clone();
            pieces.push(EndExtents {
                extents: Some(extents(&step)),
                places: self.group.places(now, placement::by_parts(&step))?,
                check: Box::new(move |now| unless_changed(placement::is_free(now, &step), &name)),
            });
        }
        Ok(pieces)
    }

    /// The commands that make a volume longer, piece by piece.
    pub(super) fn extensions(
        &self,
        now: &VolumeGroup,
        volume: &LogicalVolume,
        to: Size,
        command: fn() -> Command,
        pieces: Vec<EndExtents>,
    ) -> Result<Vec<Command>> {
        let (mut bytes, last) = (now.bytes(volume), pieces.len());
        let mut commands = Vec::new();
        for (number, piece) in (1..).zip(pieces) {
            bytes += piece.extents.unwrap_or_default() * now.extent;
            let to = if number == last {
                to
            } else {
                Size::try_from(bytes)?
            };
            let extension = self.extension(command(), volume, to);
            commands.push(extension.words(piece.places).allowed_by(piece.check));
        }
        Ok(commands)
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
                "another process removed {} while it was being wiped; retry",
                end_of(id)
            ),
        )
    })
}

/// How much longer each leg or stripe becomes by rows, in extents.
fn extents(rows: &[Row]) -> u64 {
    let parts = rows.iter().filter_map(|row| row.first());
    parts.map(|area| area.count).sum()
}

impl Group {
    /// What each command takes of the rows of a volume whose length counts so many parts of each.
    fn pieces(&self, now: &VolumeGroup, rows: &[Row], parts: u64) -> Result<Vec<Places>> {
        let all = rows.first().map_or(0, Vec::len);
        if all == 1 {
            // What is not parallel LVM can take at once.
            let areas = placement::by_parts(rows);
            return Ok(vec![(extents(rows), self.places(now, areas)?)]);
        }
        let pieces = placement::by_disks(rows).map(|step| {
            let places = self.places(now, placement::by_parts(step))?;
            Ok((extents(step) * parts, places))
        });
        pieces.collect()
    }
}
