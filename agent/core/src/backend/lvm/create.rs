//! Creating images: the part that is common to all types of volumes.

use drumlin_lvm::{
    command::Command,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
};

use super::{Change, Image, ImageSpec, Lvm, OwnVolume, name_of, tags::Tags};
use crate::{
    Error, Kind, Result,
    backend::{
        Origin,
        encrypted::{has_written_header, header_of},
    },
    blocking, fail,
    host::luks,
    types::{ImageId, ImageKind, Size},
};

impl Lvm {
    /// Creates an image, or the incomplete volume that is filled next.
    pub(super) async fn make(&self, spec: &ImageSpec) -> Result<Change<Image>> {
        let hand = self.group.in_flight.take(name_of(spec.id));
        // A snapshot reserves no capacity: it is not written to.
        let is_volume = spec.id.kind == ImageKind::Volume;
        let reservation = is_volume.then(|| self.reserve(name_of(spec.id), spec.size));
        let made = self.make_in_flight(spec).await?;
        drop(reservation);
        if is_volume {
            self.volume_type().hold_until_filled(spec.id, hand);
        }
        Ok(made)
    }

    async fn make_in_flight(&self, spec: &ImageSpec) -> Result<Change<Image>> {
        let mut now = self.group.now().await?;
        if let Some(found) = self.find(&now, spec.id) {
            if !found.tags.is_incomplete {
                return Ok(Change::Already(self.image(&now, &found)?));
            }
            if self.volume_type().can_continue(self, &now, &found, spec) {
                return Ok(Change::Made(self.image(&now, &found)?));
            }
            self.volume_type().remove_incomplete(self, &found).await?;
            now = self.group.now().await?;
        }
        if let Origin::CopyOf(origin) = spec.origin {
            self.unmerged_volume(&now, origin)?;
            self.volume_type().flush(self, &now, origin).await?;
            now = self.group.now().await?;
        }
        if let Some(renaming) = self.freeing(&now, spec.id) {
            self.group.change(vec![renaming]).await?;
            now = self.group.now().await?;
        }
        self.check_names(&now, spec.id)?;
        Self::check_records(&now)?;
        let unit = self.sizes(now.extent_size)?.unit;
        let size = spec.size.round_up(unit).unwrap_or(spec.size);
        let result = self.make_with(&now, spec, size).await;
        let now = self.group.now().await?;
        if let Err(error) = result {
            // If an LVM process was killed, its leftovers are recovered before anything else is done.
            self.group.ready(&self.settings.node).await?;
            self.discard(spec.id).await.map_err(|second| {
                error.undo_failed("the incomplete volume could not be removed", &second)
            })?;
            return Err(error);
        }
        let found = self.find(&now, spec.id).ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!("{} was created, but another process removed it", spec.id),
            )
        })?;
        fail::point("lvm.create.made");
        Ok(Change::Made(self.image(&now, &found)?))
    }

    /// Creates what does not exist yet.
    async fn make_with(&self, now: &GroupMetadata, spec: &ImageSpec, size: Size) -> Result<()> {
        match spec.origin {
            Origin::Blank => self.volume_type().create_blank(self, now, spec, size).await,
            Origin::CopyOf(origin) => {
                let source = self.complete_volume(now, origin)?;
                self.volume_type()
                    .create_copy(self, now, spec, size, &source)
                    .await
            }
        }
    }

    /// The tags that an image is created with.
    pub(super) fn tags(&self, spec: &ImageSpec) -> Tags {
        Tags {
            labels: spec.labels.clone(),
            ..Tags::new(
                spec.id,
                self.settings.class.as_str(),
                self.settings.node.as_str(),
            )
        }
    }

    /// Removes every volume of an incomplete image.
    pub(super) async fn discard(&self, id: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        let parts = self.ours(&now).filter(|ours| ours.tags.id == id);
        // A volume is removed before the temporary snapshot that it is copied from.
        let mut names: Vec<&LogicalVolume> = parts.map(|ours| ours.volume).collect();
        names.sort_by_key(|volume| volume.name != name_of(id));
        self.volume_type().discard(self, names).await
    }

    /// Overwrites the header of an encrypted volume that is about to be removed: nobody can read its data any more. One
    /// whose disks are missing is removed all the same.
    pub(super) async fn forget_keys(&self, found: &OwnVolume<'_>) -> Result<()> {
        let Some(header) = written_header(found) else {
            return Ok(());
        };
        let now = self.group.now().await?;
        let device = self.activate(&now, found.volume).await?;
        let bytes = header.min(now.bytes(found.volume));
        blocking(move || luks::forget(&device, bytes)).await?;
        fail::point("encrypted.remove.header");
        Ok(())
    }

    /// The command that removes a volume of any type.
    pub(super) fn removal(&self, volume: &LogicalVolume) -> Command {
        let uuid = volume.uuid.clone();
        Command::new("lvremove")
            .words([self.group.path(&volume.name)])
            .done_when(move |now| now.volumes.values().all(|volume| volume.uuid != uuid))
    }
}

/// Returns a test for the existence of a volume with this name.
pub(super) fn exists(name: String) -> impl Fn(&GroupMetadata) -> bool {
    move |now| now.volumes.contains_key(&name)
}

/// The size of the header of a volume that has a written one, which a removal overwrites.
pub(super) fn written_header(found: &OwnVolume<'_>) -> Option<u64> {
    // What is written to an old-style snapshot only fills its exception store.
    let is_written = found.volume.is_complete
        && has_written_header(&found.tags.labels)
        && !matches!(found.volume.kind, VolumeKind::Snapshot { .. });
    header_of(&found.tags.labels).filter(|_| is_written)
}
