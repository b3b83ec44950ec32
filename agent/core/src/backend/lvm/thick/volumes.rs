//! Thick volumes and their snapshots, which keep overwritten blocks in an exception store.

use std::sync::Arc;

use drumlin_lvm::{
    Extents,
    command::Command,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
    placement,
};

use crate::{
    Error, Kind, Result,
    backend::Reason,
    backend::lvm::{
        Capacity, Health, ImageSpec, Layout, Lvm, OwnVolume, Thick, Wipe,
        create::exists,
        group::Group,
        layers::check_snapshot_over,
        name_of,
        tags::{self, Tags},
        temporary_snapshot_of,
    },
    types::{ImageId, ImageKind, Size},
};

/// The extents that are kept free.
pub(crate) fn kept(now: &GroupMetadata, thick: &Thick) -> Extents {
    let all: Extents = now.disks.values().map(|disk| disk.extents).sum();
    all.percent(thick.reserve)
}

/// The free capacity of the group for this class.
pub(crate) fn capacity(now: &GroupMetadata, thick: &Thick) -> Result<Capacity> {
    let extents = thick.layout.largest(&free_lengths(now), kept(now, thick));
    let bytes = extents.bytes(now.extent_size).min(Size::MAX.bytes());
    let unit = Extents(thick.layout.unit().into()).bytes(now.extent_size);
    let largest = Size::try_from(bytes)?.round_down(Size::try_from(unit)?);
    Ok(Capacity {
        available: largest,
        largest,
    })
}

/// The lengths of the free areas of each disk.
fn free_lengths(now: &GroupMetadata) -> Vec<Vec<Extents>> {
    let disks = placement::free_areas(now);
    let lengths = disks
        .iter()
        .map(|areas| areas.iter().map(|area| area.count).collect());
    lengths.collect()
}

/// Checks that the group has enough disks for a volume.
pub(crate) fn check_disks(now: &GroupMetadata, thick: &Thick) -> Result<()> {
    let disks = now.disks.values().filter(|disk| !disk.is_missing).count();
    if u32::try_from(disks).unwrap_or(u32::MAX) >= thick.layout.disks() {
        return Ok(());
    }
    Err(Error::new(
        Kind::Precondition,
        format!(
            "volume group {} has {disks} disks, but a volume of this class needs {}; add disks with vgextend",
            now.name,
            thick.layout.disks()
        ),
    ))
}

/// Refuses a volume that the group has no room for.
pub(crate) fn check_group_room(
    now: &GroupMetadata,
    thick: &Thick,
    layout: Layout,
    bytes: u64,
) -> Result<()> {
    let extents = layout.largest(&free_lengths(now), kept(now, thick));
    let room = extents.bytes(now.extent_size);
    if bytes <= room {
        return Ok(());
    }
    let reserved = reserved(thick);
    Err(Error::new(
        Kind::NoSpace,
        format!(
            "volume group {} has room for {room} bytes{reserved}, but {bytes} are needed",
            now.name
        ),
    ))
}

/// The part of an error message about the reserve.
pub(crate) fn reserved(thick: &Thick) -> String {
    match thick.reserve {
        0 => String::new(),
        reserve => format!(" ({reserve} % of the group is kept free)"),
    }
}

/// Makes the command check, right before it runs, that concurrent requests have not used the room. LVM does not know
/// the reserve.
fn within_room(command: Command, thick: &Thick, layout: Layout, bytes: u64) -> Command {
    let thick = thick.clone();
    command.allowed_by(move |now| check_group_room(now, &thick, layout, bytes))
}

impl Lvm {
    /// The commands that create a volume. It is not visible before LVM has wiped its head; if the class wipes
    /// volumes, it becomes visible only after the copy or wipe is complete.
    pub(crate) fn new_thick(
        &self,
        now: &GroupMetadata,
        thick: &Thick,
        spec: &ImageSpec,
        size: Size,
    ) -> Result<Vec<Command>> {
        let is_filled = thick.wipe != Wipe::None;
        let tags = Tags {
            is_incomplete: true,
            copied: is_filled.then_some(0),
            ..self.tags(spec)
        };
        let mut commands = vec![self.thick_with(now, thick, &tags, size)?];
        if !is_filled {
            commands.push(self.unmark(&name_of(spec.id)));
        }
        Ok(commands)
    }

    fn thick_with(
        &self,
        now: &GroupMetadata,
        thick: &Thick,
        tags: &Tags,
        size: Size,
    ) -> Result<Command> {
        check_disks(now, thick)?;
        check_group_room(now, thick, thick.layout, size.bytes())?;
        Ok(self.thick_called(name_of(tags.id), thick, tags, size.bytes()))
    }

    /// The command that creates a volume with this name, if there is room when it runs.
    pub(crate) fn thick_called(
        &self,
        name: String,
        thick: &Thick,
        tags: &Tags,
        bytes: u64,
    ) -> Command {
        // Signatures of former file systems are always wiped at creation.
        let command = Command::new("lvcreate")
            .words(["-Wy", "-Zy", "-n", &name])
            .words(["-L".to_owned(), format!("{bytes}b")])
            .words(thick.layout.words())
            .add_tags(tags.write())
            .words([&self.group.name])
            .done_when(exists(name));
        let command = match thick.layout {
            Layout::Mirrored(_) => self.on_disks_of_their_own(command, thick.layout, bytes),
            Layout::Linear | Layout::Striped(_) => command,
        };
        within_room(command, thick, thick.layout, bytes)
    }

    /// The commands that create a snapshot. LVM commits the snapshot before it has its device: until then, writes to
    /// its origin bypass it, and activating it later would give it an empty store.
    pub(crate) fn new_snapshot(
        &self,
        now: &GroupMetadata,
        thick: &Thick,
        spec: &ImageSpec,
        source: &OwnVolume<'_>,
    ) -> Result<Vec<Command>> {
        let tags = Tags {
            is_incomplete: true,
            ..self.tags(spec)
        };
        let name = name_of(spec.id);
        let make = self.snapshot_with(now, thick, &name, tags, source.volume)?;
        Ok(vec![make, self.unmark(&name)])
    }

    /// The command that creates a snapshot of a group snapshot: it becomes visible when the group snapshot is
    /// complete.
    pub(crate) fn new_member(
        &self,
        now: &GroupMetadata,
        thick: &Thick,
        spec: &ImageSpec,
        source: &OwnVolume<'_>,
    ) -> Result<Command> {
        let tags = self.tags(spec);
        self.snapshot_with(now, thick, &name_of(spec.id), tags, source.volume)
    }

    fn snapshot_with(
        &self,
        now: &GroupMetadata,
        thick: &Thick,
        name: &str,
        tags: Tags,
        origin: &LogicalVolume,
    ) -> Result<Command> {
        check_snapshot_over(origin, &self.group.path(&origin.name))?;
        if !matches!(origin.kind, VolumeKind::Plain | VolumeKind::Mirrored) {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "{} is not a thick volume any more and cannot have snapshots",
                    self.group.path(&origin.name)
                ),
            ));
        }
        let shown = now.bytes(origin);
        let store = thick.store(shown).next_multiple_of(now.extent_size);
        check_group_room(now, thick, Layout::Linear, store)?;
        let tags = Tags {
            size: Some(shown),
            ..tags
        };
        let (made, group) = (name.to_owned(), Arc::clone(&self.group));
        let command = Command::new("lvcreate")
            .words(["-s", "-n", name])
            .words(["-L".to_owned(), format!("{store}b")])
            .add_tags(tags.write())
            .words([self.group.path(&origin.name)])
            .done_when(move |now| {
                let made = now.volumes.get(&made);
                made.is_some_and(|made| group.keeps_what_is_written_over(now, made))
            });
        Ok(within_room(command, thick, Layout::Linear, store))
    }

    /// The command that removes the incomplete tag.
    fn unmark(&self, name: &str) -> Command {
        Command::new("lvchange")
            .words(["--deltag", &tags::incomplete(), &self.group.path(name)])
            .done_when(is_shown(name.to_owned()))
    }

    /// The commands that create the temporary snapshot of a copy, and the volume that is filled from it.
    pub(crate) fn begin_copy(
        &self,
        now: &GroupMetadata,
        thick: &Thick,
        spec: &ImageSpec,
        size: Size,
        source: &OwnVolume<'_>,
    ) -> Result<Vec<Command>> {
        let unfinished = Tags {
            is_incomplete: true,
            ..self.tags(spec)
        };
        let mut commands = Vec::new();
        if source.tags.id.kind == ImageKind::Volume {
            // Both must have room, or nothing is started.
            let store = thick.store(now.bytes(source.volume));
            check_group_room(now, thick, thick.layout, size.bytes() + store)?;
            let tags = Tags {
                labels: crate::backend::Labels::new(),
                ..unfinished.clone()
            };
            let name = temporary_snapshot_of(spec.id);
            commands.push(self.snapshot_with(now, thick, &name, tags, source.volume)?);
        }
        let target = Tags {
            source: Some(source.tags.id),
            copied: Some(0),
            ..unfinished
        };
        commands.push(self.thick_with(now, thick, &target, size)?);
        Ok(commands)
    }

    /// The health of a snapshot; assumed to be good while it is inactive.
    pub(crate) fn snapshot_health(
        &self,
        now: &GroupMetadata,
        snapshot: &LogicalVolume,
    ) -> Result<Health> {
        let status = self.status(now, snapshot)?;
        // "<used>/<all> <metadata>", or a word.
        Ok(match status.as_deref() {
            Some("Invalid" | "Overflow") => Health::damaged(
                Reason::SnapshotOverflowed,
                "its exception store overflowed, which invalidates the snapshot permanently; delete it, and set a larger snapshotSize in the class",
            ),
            _ => Health::Good,
        })
    }

    fn status(&self, now: &GroupMetadata, volume: &LogicalVolume) -> Result<Option<String>> {
        let Some(device) = self.device(now, volume)? else {
            return Ok(None);
        };
        self.group.mapper()?.status(&device.uuid)
    }

    /// Wipes the extents for extending a volume, if the class is configured to, and returns the commands that extend
    /// it. LVM can extend a volume with snapshots only while it is inactive.
    pub(crate) async fn extend_thick(
        &self,
        now: &GroupMetadata,
        thick: &Thick,
        found: &OwnVolume<'_>,
        to: Size,
    ) -> Result<Vec<Command>> {
        if thick.wipe != Wipe::None {
            self.check_no_layer(now, found)?;
        }
        let volume = found.volume;
        let path = self.group.path(&volume.name);
        let mut commands = Vec::new();
        let is_live = self.device(now, volume)?.is_some();
        let mut loses_device = false;
        let snapshots: Vec<&LogicalVolume> = now.snapshots_of(volume).collect();
        if is_live && !snapshots.is_empty() {
            for used in snapshots.iter().copied().chain([volume]) {
                self.check_idle(now, used).await.map_err(|error| {
                    Error::new(
                        Kind::Precondition,
                        format!(
                            "volume {} has snapshots ({}) and cannot be extended while it or one of them is in use; delete them, or extend it while it is not staged: {error}",
                            self.handle(found.tags.id),
                            self.names(&snapshots)
                        ),
                    )
                })?;
            }
            loses_device = true;
        }
        let more = to.bytes() - now.bytes(volume);
        // Another process may activate it meanwhile, and LVM would refuse.
        let command = if loses_device {
            || Command::on_disk("lvextend")
        } else {
            || Command::new("lvextend")
        };
        let pieces = match thick.wipe {
            Wipe::None => self.unwiped_end(now, thick, volume, more)?,
            Wipe::Zero | Wipe::Discard => {
                let end = self.clean_end(thick, found, more).await?;
                end.taken_after(u64::from(loses_device))
            }
        };
        let extensions = self.extensions(now, volume, to, command, pieces)?;
        if loses_device {
            // After a kill, recovery sees that it was active.
            commands.push(
                Command::new("lvchange")
                    .add_tags([tags::growing()])
                    .words([&path]),
            );
            commands.push(Command::new("lvchange").words(["-an", &path]));
        }
        commands.extend(extensions);
        Ok(commands)
    }

    /// Removes a volume or a snapshot. A volume with snapshots is removed only if the class is configured to. It is
    /// not visible any more once wiping has begun; after an interruption a repeated call continues.
    pub(crate) async fn remove_thick(&self, thick: &Thick, id: ImageId) -> Result<()> {
        self.end_copies_of(thick, id).await?;
        let now = self.group.now().await?;
        let found = self.complete_volume(&now, id)?;
        self.remove_found(thick, &now, &found).await
    }

    /// Refuses an image of which a copy is being filled.
    pub(crate) fn check_not_copied(&self, now: &GroupMetadata, id: ImageId) -> Result<()> {
        let mut copies = self.incomplete_copies(now, id).into_iter();
        copies.try_for_each(|copy| self.check_copy_not_in_flight(id, copy))
    }

    fn check_copy_not_in_flight(&self, id: ImageId, copy: ImageId) -> Result<()> {
        if !self.group.in_flight.has(&name_of(copy)) {
            return Ok(());
        }
        Err(Error::new(
            Kind::InUse,
            format!(
                "{} is being copied; wait until the copy is complete",
                self.handle(id)
            ),
        ))
    }

    fn incomplete_copies(&self, now: &GroupMetadata, id: ImageId) -> Vec<ImageId> {
        self.ours(now)
            .filter(|ours| ours.tags.is_incomplete && ours.tags.source == Some(id))
            // Its deletion has begun, and continues independently.
            .filter(|ours| !ours.tags.is_deleting)
            .map(|ours| ours.tags.id)
            .collect()
    }

    /// Removes incomplete copies of an image: no caller got a reply for them.
    async fn end_copies_of(&self, thick: &Thick, id: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        for copy in self.incomplete_copies(&now, id) {
            self.check_copy_not_in_flight(id, copy)?;
            self.discard(copy).await?;
        }
        // Then the temporary snapshot of a complete copy, if it was not removed.
        let now = self.group.now().await?;
        let Some(found) = self.find(&now, id) else {
            return Ok(());
        };
        let left = now.snapshots_of(found.volume).filter(|snapshot| {
            let tags = self.tags_of(snapshot).filter(|tags| tags.is_incomplete);
            let tags = tags.filter(|tags| !tags.is_deleting);
            tags.is_some_and(|tags| {
                let of = tags.id;
                snapshot.name == temporary_snapshot_of(of)
                    && !self.group.in_flight.has(&name_of(of))
            })
        });
        for snapshot in left {
            self.free(thick, snapshot).await?;
        }
        Ok(())
    }

    /// Refuses a volume with snapshots that may not be removed with it. Temporary ones of copies are no reason.
    pub(crate) async fn check_unbound(
        &self,
        now: &GroupMetadata,
        thick: &Thick,
        found: &OwnVolume<'_>,
    ) -> Result<()> {
        let is_temporary = |snapshot: &&LogicalVolume| {
            let tags = self.tags_of(snapshot);
            tags.is_some_and(|tags| tags.is_incomplete && !tags.is_deleting)
        };
        let mut snapshots: Vec<&LogicalVolume> = now.snapshots_of(found.volume).collect();
        snapshots.retain(|snapshot| !is_temporary(snapshot));
        if snapshots.is_empty() {
            return Ok(());
        }
        self.check_snapshots(now, thick, found.tags.id, &snapshots)
            .await
    }

    /// Refuses unless the snapshots of a volume may be removed with it.
    pub(crate) async fn check_snapshots(
        &self,
        now: &GroupMetadata,
        thick: &Thick,
        id: ImageId,
        snapshots: &[&LogicalVolume],
    ) -> Result<()> {
        let is_ours = |snapshot: &&LogicalVolume| self.tags_of(snapshot).is_some();
        let is_deleting =
            |snapshot: &&LogicalVolume| self.tags_of(snapshot).is_some_and(|tags| tags.is_deleting);
        if snapshots.iter().any(is_deleting) {
            return Err(Error::new(
                Kind::Busy,
                format!(
                    "a snapshot of volume {} is being removed; retry",
                    self.handle(id)
                ),
            ));
        }
        // Nobody asked for an end of the snapshots of what is in the trash, when its time is over.
        let is_asked_for = thick.deletes_snapshots && id.kind != ImageKind::Trash;
        if !is_asked_for || !snapshots.iter().all(is_ours) {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "volume {} has snapshots that would be lost with it: {}; delete them first",
                    self.handle(id),
                    self.names(snapshots)
                ),
            ));
        }
        for snapshot in snapshots {
            self.check_idle(now, snapshot).await?;
        }
        Ok(())
    }

    /// Volumes by their handles, or by their LVM names where they have none.
    fn names(&self, volumes: &[&LogicalVolume]) -> String {
        let names = volumes.iter().map(|volume| {
            self.tags_of(volume).map_or_else(
                || self.group.path(&volume.name),
                |tags| self.handle(tags.id).to_string(),
            )
        });
        names.collect::<Vec<_>>().join(", ")
    }
}

impl Group {
    /// Returns true if a volume is an active snapshot, provided that its origin is active.
    fn keeps_what_is_written_over(&self, now: &GroupMetadata, made: &LogicalVolume) -> bool {
        let VolumeKind::Snapshot { origin } = &made.kind else {
            return false;
        };
        let is_live = |volume: &LogicalVolume| {
            let found = self.mapper()?.find(&now.mapped_uuid(volume))?;
            Ok::<_, Error>(found.is_some_and(|device| device.is_live))
        };
        let origin = now.volumes.get(origin);
        let is_written = origin.map_or(Ok(false), is_live);
        is_written.is_ok_and(|is_written| !is_written || is_live(made).unwrap_or(false))
    }
}

/// Returns a test that the volume with this name exists and is visible.
pub(crate) fn is_shown(name: String) -> impl Fn(&GroupMetadata) -> bool {
    move |now| {
        let tags = now
            .volumes
            .get(&name)
            .and_then(|volume| Tags::read(&volume.tags));
        tags.is_some_and(|tags| !tags.is_incomplete)
    }
}
