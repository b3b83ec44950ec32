//! The extents by which a thick volume is extended: wiped as a separate volume before they become part of it.
//!
//! Once extents belong to a volume in LVM's metadata, they can become visible at any time: by a table reload of
//! `pvmove` or `lvchange --refresh`, or by activation at the next boot. So only wiped extents are added. LVM cannot
//! transfer extents from one volume to another; they are briefly free, and the extension allocates exactly these.

use std::sync::{Arc, Mutex};

use drumlin_lvm::{
    Extents,
    command::{Check, Command},
    metadata::{GroupMetadata, LogicalVolume},
    placement::{self, NOTES, Row},
};

use crate::{
    Error, Kind, Result,
    backend::encrypted::header_of,
    backend::lvm::{
        Layout, Lvm, OwnVolume, Thick, Wipe,
        create::exists,
        end_of,
        group::Group,
        tags::Tags,
        thick::{
            legs::MirrorEnd,
            volumes::{check_disks, check_group_room},
        },
    },
    fail,
    host::lock,
    types::{ImageId, Size},
};

/// A number of extents and their locations as `lvextend` takes them: `/dev/sda:10-19`, the last one included.
type Places = (Extents, Vec<String>);

/// Extents that are wiped and free.
#[derive(Debug)]
pub(crate) struct CleanEnd {
    /// The extents that each command takes.
    pieces: Vec<Places>,
    /// The name of the group.
    group: String,
    /// The group's sequence number right before the extents were freed.
    sequence: u64,
}

/// The extents that one command adds to a volume.
pub(crate) struct EndExtents {
    /// Number of extents by which the volume is extended; none for the rest.
    extents: Option<Extents>,
    /// Their locations as `lvextend` takes them: `/dev/sda:10-19`, the last one included. Empty to let LVM choose.
    places: Vec<String>,
    /// The precondition on the metadata.
    check: Check,
}

/// Maximum number of foreign changes in between that cannot both use the extents and free them again.
const FOREIGN: u64 = 1;

impl CleanEnd {
    /// The commands that take exactly these extents, given the number of changes that this process has made since
    /// they were freed.
    pub(crate) fn taken_after(self, own: u64) -> Vec<EndExtents> {
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

/// The error when it is no longer certain that the wiped extents are still free.
fn changed_meanwhile(group: &str) -> Error {
    Error::new(
        Kind::Busy,
        format!(
            "volume group {group} was changed by another process before a volume in it was extended; retry"
        ),
    )
}

impl Lvm {
    /// Allocates and wipes the extents for extending a volume by this number of bytes. Leftovers of an interrupted
    /// extension are removed first.
    ///
    /// # Errors
    /// `NoSpace`; `HalfDone` when the agent stops first; `Busy` when another process changed the group.
    pub(crate) async fn clean_end(
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
        // The extents for the legs of a mirror, chosen right before the command runs.
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
        let wipe = match header_of(&found.tags.labels) {
            Some(_) => Wipe::None,
            None => thick.wipe,
        };
        self.wipe(id, wipe, device, 0..length).await?;
        fail::point("thick.end.wiped");
        let now = self.group.now().await?;
        let areas = now.areas(end_in(&now, id)?, |part| !part.contains(NOTES));
        let chosen = std::mem::take(&mut *lock(&chosen));
        let rows = if chosen.is_empty() {
            let parts = usize::try_from(layout.unit()).unwrap_or(1);
            areas.chunks(parts).map(<[_]>::to_vec).collect()
        } else if placement::is_same(placement::by_parts(&chosen), &areas) {
            chosen
        } else {
            // Another process has moved it.
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

    /// The command that creates the volume which is wiped before the legs of a mirror get its extents: one volume
    /// over all of them.
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
                *lock(&chosen) = rows;
                Ok(places)
            })
    }

    /// The extents for extending a volume without wiping.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn unwiped_end(
        &self,
        now: &GroupMetadata,
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

    /// The commands that extend a volume, piece by piece.
    pub(crate) fn extensions(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        to: Size,
        command: fn() -> Command,
        pieces: Vec<EndExtents>,
    ) -> Result<Vec<Command>> {
        let (mut bytes, last) = (now.bytes(volume), pieces.len());
        let mut commands = Vec::new();
        for (number, piece) in (1..).zip(pieces) {
            bytes += piece.extents.unwrap_or_default().bytes(now.extent_size);
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

    /// Removes the temporary volume with the extents for an extension, if it exists.
    pub(crate) async fn remove_end(&self, id: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        match end_in(&now, id) {
            Ok(end) => self.group.change(vec![self.removal(end)]).await,
            Err(_) => Ok(()),
        }
    }
}

fn end_in(now: &GroupMetadata, id: ImageId) -> Result<&LogicalVolume> {
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

/// The extents by which these rows extend each leg or stripe.
fn extents(rows: &[Row]) -> Extents {
    let parts = rows.iter().filter_map(|row| row.first());
    parts.map(|area| area.count).sum()
}

impl Group {
    /// The part of the rows that each command takes, for a volume whose length counts `parts` of each row.
    fn pieces(&self, now: &GroupMetadata, rows: &[Row], parts: u64) -> Result<Vec<Places>> {
        let all = rows.first().map_or(0, Vec::len);
        if all == 1 {
            // LVM can take non-parallel extents in one command.
            let areas = placement::by_parts(rows);
            return Ok(vec![(extents(rows), self.places(now, areas)?)]);
        }
        let pieces = placement::by_disks(rows).map(|step| {
            let places = self.places(now, placement::by_parts(step))?;
            Ok((extents(step).times(parts), places))
        });
        pieces.collect()
    }
}
