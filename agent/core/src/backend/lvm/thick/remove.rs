//! Removing thick volumes and snapshots: if the class is configured to, tenants' data is wiped before the extents are
//! freed.
//!
//! Tenants' data is in volumes, in incomplete copies, and in the exception stores of snapshots. A store is in use
//! while its snapshot exists, so LVM first splits it from the volume. An image that is being deleted has a tag that
//! says so from before that; a repeated call continues the deletion.

use drumlin_lvm::{
    command::Command,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
};

use crate::{
    Error, Kind, Result,
    backend::{
        encrypted::header_of,
        lvm::{
            Lvm, OwnVolume, Thick, Wipe,
            tags::{self, Tags},
        },
    },
    blocking, fail,
    host::luks,
    types::{ImageId, ImageKind},
};

impl Lvm {
    /// Volumes whose deletion has begun and is not in flight.
    pub(crate) fn left_behind<'a>(
        &'a self,
        now: &'a GroupMetadata,
    ) -> impl Iterator<Item = OwnVolume<'a>> {
        self.ours(now).filter(|ours| {
            ours.tags.is_deleting && !self.group.in_flight.has(&removal_of(ours.volume))
        })
    }

    /// Continues interrupted deletions of an image, if any.
    pub(crate) async fn end_removal(&self, thick: &Thick, id: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        for found in self.left_behind(&now).filter(|ours| ours.tags.id == id) {
            self.remove_found(thick, &now, &found).await?;
        }
        Ok(())
    }

    /// Removes a volume or a snapshot, including its own snapshots if the class is configured to.
    pub(crate) async fn remove_found(
        &self,
        thick: &Thick,
        now: &GroupMetadata,
        found: &OwnVolume<'_>,
    ) -> Result<()> {
        let snapshots: Vec<&LogicalVolume> = now.snapshots_of(found.volume).collect();
        if !snapshots.is_empty() {
            self.check_snapshots(now, thick, found.tags.id, &snapshots)
                .await?;
            // Before it is wiped: otherwise the overwritten blocks would be copied to their stores.
            for snapshot in snapshots {
                self.free(thick, snapshot).await?;
            }
        }
        self.free(thick, found.volume).await
    }

    /// Removes one volume or snapshot, wiping it as the class is configured.
    pub(crate) async fn free(&self, thick: &Thick, volume: &LogicalVolume) -> Result<()> {
        let tags = self.tags_of(volume);
        let holds_bytes = tags.as_ref().is_some_and(|tags| holds_bytes(volume, tags));
        // Data on a lost disk cannot be wiped, and must not block the removal forever.
        let can_wipe = thick.wipe == Wipe::Zero && volume.is_complete;
        match tags {
            Some(tags) if can_wipe && holds_bytes => self.wipe_and_remove(volume, &tags).await,
            tags => {
                if let Some(tags) = tags {
                    self.forget_keys(&OwnVolume { volume, tags }).await?;
                }
                let removal = forgetting(thick, self.removal(volume));
                self.group.change(vec![removal]).await
            }
        }
    }

    async fn wipe_and_remove(&self, volume: &LogicalVolume, tags: &Tags) -> Result<()> {
        let Some(_hand) = self.group.in_flight.take_alone(removal_of(volume)) else {
            return Err(Error::new(
                Kind::Busy,
                format!(
                    "{} is already being removed; retry",
                    self.group.path(&volume.name)
                ),
            ));
        };
        // An earlier attempt may have split it.
        let was_snapshot = tags.id.kind == ImageKind::Snapshot
            || matches!(volume.kind, VolumeKind::Snapshot { .. });
        let mut commands = Vec::new();
        if !tags.is_deleting {
            commands.push(self.mark_deleting(volume));
        }
        if matches!(volume.kind, VolumeKind::Snapshot { .. }) {
            commands.push(self.split(volume));
        }
        if !commands.is_empty() {
            self.group.change(commands).await?;
        }
        fail::point("thick.remove.marked");
        let now = self.group.now().await?;
        let mut volumes = now.volumes.values();
        let Some(volume) = volumes.find(|found| found.uuid == volume.uuid) else {
            return Ok(());
        };
        if matches!(volume.kind, VolumeKind::Snapshot { .. }) {
            return Err(Error::new(
                Kind::HalfDone,
                format!(
                    "{} was split from its origin but is still a snapshot",
                    self.group.path(&volume.name)
                ),
            ));
        }
        let device = self.activate(&now, volume).await?;
        // Who forgets the key of the data need not wipe the data. The exception store of a snapshot has parts of headers
        // anywhere.
        match header_of(&tags.labels).filter(|_| !was_snapshot) {
            Some(header) => {
                let header = header.min(now.bytes(volume));
                blocking(move || luks::forget(&device, header)).await?;
            }
            None => {
                self.wipe(tags.id, Wipe::Zero, device, 0..now.bytes(volume))
                    .await?;
            }
        }
        fail::point("thick.remove.wiped");
        self.group.change(vec![self.removal(volume)]).await
    }

    fn mark_deleting(&self, volume: &LogicalVolume) -> Command {
        let uuid = volume.uuid.clone();
        mark_deleting(self.group.path(&volume.name)).done_when(move |now| {
            let found = now.volumes.values().find(|volume| volume.uuid == uuid);
            let tags = found.and_then(|volume| Tags::read(&volume.tags));
            tags.is_some_and(|tags| tags.is_deleting)
        })
    }

    /// The command that turns a snapshot's store into a plain volume.
    fn split(&self, snapshot: &LogicalVolume) -> Command {
        let uuid = snapshot.uuid.clone();
        // One `-q` more than usual: it prints what it has done, which looks like an error.
        Command::new("lvconvert")
            .words(["-q", "--splitsnapshot", &self.group.path(&snapshot.name)])
            .done_when(move |now| {
                let found = now.volumes.values().find(|volume| volume.uuid == uuid);
                found.is_none_or(|found| !matches!(found.kind, VolumeKind::Snapshot { .. }))
            })
    }
}

/// The in-flight key of the removal of a volume.
fn removal_of(volume: &LogicalVolume) -> String {
    format!("removal of {}", volume.uuid)
}

/// The command that tags a volume as being deleted.
pub(crate) fn mark_deleting(path: String) -> Command {
    Command::new("lvchange")
        .add_tags([tags::deleting()])
        .words([path])
}

/// Returns true if a thick volume or snapshot may contain tenants' data. A volume that is not filled yet contains the
/// former contents of its extents, which were wiped if required.
pub(crate) fn holds_bytes(volume: &LogicalVolume, tags: &Tags) -> bool {
    match volume.kind {
        VolumeKind::Snapshot { .. } => true,
        VolumeKind::Plain | VolumeKind::Mirrored => {
            !tags.is_incomplete || tags.is_deleting || tags.source.is_some()
        }
        _ => false,
    }
}

/// A command that frees extents, and discards them if the class is configured to.
fn forgetting(thick: &Thick, command: Command) -> Command {
    if thick.wipe == Wipe::Discard {
        command.discarding()
    } else {
        command
    }
}
