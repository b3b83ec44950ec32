//! Activating volumes, and extending them online.

use std::{path::PathBuf, sync::Arc};

use drumlin_lvm::{
    command::Command,
    merges::check_no_merge,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
};

use super::{
    Change, Image, Lvm,
    group::Group,
    node,
    tags::{self, Tags},
};
use crate::{
    Error, Kind, Result, fail,
    host::Sectors,
    types::{ImageId, Size},
};

/// Whether a volume has a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    Active,
    Inactive,
}

impl Group {
    /// The length of a device, in bytes.
    fn length(&self, uuid: &str) -> Result<u64> {
        let table = self.mapper()?.table(uuid)?;
        let sectors: Sectors = table.iter().map(|line| line.length).sum();
        Ok(sectors.bytes())
    }
}

impl Lvm {
    /// Activates a volume; its device is as long as the volume.
    pub(super) async fn activate(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
    ) -> Result<PathBuf> {
        if let Some(device) = self.device(now, volume)? {
            self.volume_type()
                .lengthen(self, now, volume, &device)
                .await?;
            return node(device).await;
        }
        // Snapshots have the activation-skip flag, so that they are not activated with all other volumes.
        let (group, uuid) = (Arc::clone(&self.group), now.mapped_uuid(volume));
        let command = Command::new("lvchange")
            .words(["-ay", "-K", &self.group.path(&volume.name)])
            .done_when(move |_| {
                let found = group.mapper().and_then(|mapper| mapper.find(&uuid));
                found.is_ok_and(|device| device.is_some_and(|device| device.is_live))
            });
        self.group.change(vec![command]).await?;
        let device = self.device(now, volume)?.ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!(
                    "{} was activated but has no device",
                    self.group.path(&volume.name)
                ),
            )
        })?;
        node(device).await
    }

    /// Extends a volume.
    pub(super) async fn extend(&self, id: ImageId, to: Size) -> Result<Change<Image>> {
        // An adopted volume has kept its name, by which the reservation finds what it has already.
        let name = {
            let now = self.group.now().await?;
            self.complete_volume(&now, id)?.volume.name.clone()
        };
        let _reservation = self.reserve(name.clone(), to);
        let mut now = self.group.now().await?;
        if self.complete_volume(&now, id)?.tags.is_growing {
            self.end_growth(id).await?;
            now = self.group.now().await?;
        }
        let found = self.complete_volume(&now, id)?;
        let device = self.device(&now, found.volume)?;
        let was = device
            .as_ref()
            .map_or(Activation::Inactive, |_| Activation::Active);
        let before = now.bytes(found.volume);
        if to.bytes() <= before {
            // An earlier extension may have been interrupted between metadata and device.
            if let Some(device) = device {
                self.volume_type()
                    .lengthen(self, &now, found.volume, &device)
                    .await?;
            }
            return Ok(Change::Already(self.image(&now, &found)?));
        }
        check_no_merge(&now, found.volume)?;
        let ahead = self.group.reservations.ahead_of(&name, &now);
        self.volume_type()
            .check_room(self, &now, to.bytes() - before, ahead)
            .await?;
        let grown = self.volume_type().extend(self, &now, &found, to, was);
        grown.await?;
        fail::point("lvm.grow.recorded");
        self.end_growth(id).await?;
        let now = self.group.now().await?;
        let found = self.complete_volume(&now, id)?;
        if let Some(device) = self.device(&now, found.volume)? {
            self.volume_type()
                .lengthen(self, &now, found.volume, &device)
                .await?;
        }
        self.bring_back(id, was).await;
        fail::point("lvm.grow.lengthened");
        Ok(Change::Made(self.image(&now, &found)?))
    }

    /// Cleans up after a failed extension.
    pub(super) async fn give_up_growth(&self, id: ImageId, was: Activation) {
        if let Err(error) = self.remove_end(id).await {
            tracing::warn!(image = %id, error = %error.chain(), "extents reserved for growing a volume not released");
        }
        self.bring_back(id, was).await;
    }

    /// Reactivates a volume that was deactivated to be extended, and removes the tag that says so.
    async fn end_growth(&self, id: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        let found = self.complete_volume(&now, id)?;
        if !found.tags.is_growing {
            return Ok(());
        }
        if found.volume.is_complete {
            self.activate(&now, found.volume).await?;
        }
        let uuid = found.volume.uuid.clone();
        let path = self.group.path(&found.volume.name);
        let unmark = Command::new("lvchange")
            .words(["--deltag", &tags::growing(), &path])
            .done_when(move |now| {
                let mut volumes = now.volumes.values();
                let volume = volumes.find(|volume| volume.uuid == uuid);
                let tags = volume.and_then(|volume| Tags::read(&volume.tags));
                tags.is_none_or(|tags| !tags.is_growing)
            });
        self.group.change(vec![unmark]).await
    }

    /// Reactivates a volume that was active before it was extended: it may be staged, and publishing does not check.
    async fn bring_back(&self, id: ImageId, was: Activation) {
        if was == Activation::Inactive {
            return;
        }
        let again = async {
            let now = self.group.now().await?;
            let found = self.complete_volume(&now, id)?;
            if self.device(&now, found.volume)?.is_none() {
                self.activate(&now, found.volume).await?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = again.await {
            tracing::warn!(image = %id, error = %error.chain(), "volume was extended but could not be reactivated");
        }
    }

    /// The command that extends a volume to this size.
    pub(super) fn extension(&self, command: Command, volume: &LogicalVolume, to: Size) -> Command {
        let (bytes, uuid) = (to.bytes(), volume.uuid.clone());
        command
            .words([
                "-L".to_owned(),
                format!("{bytes}b"),
                self.group.path(&volume.name),
            ])
            .done_when(move |now| {
                let mut volumes = now.volumes.values();
                volumes.any(|volume| volume.uuid == uuid && now.bytes(volume) >= bytes)
            })
    }

    /// The command that extends a device to the length in the metadata, if it is shorter.
    pub(super) fn refresh_if_short(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
    ) -> Result<Option<Command>> {
        // The device of an old-style snapshot is as long as its origin; the metadata has the length of its exception
        // store.
        if matches!(volume.kind, VolumeKind::Snapshot { .. }) {
            return Ok(None);
        }
        // A refresh would start the merge.
        if now.merged_into(volume).is_some() {
            return Ok(None);
        }
        let Some(device) = self.device(now, volume)? else {
            return Ok(None);
        };
        if self.group.length(&device.uuid)? >= now.bytes(volume) {
            return Ok(None);
        }
        let (group, wanted) = (Arc::clone(&self.group), now.bytes(volume));
        let command = Command::new("lvchange")
            .words(["--refresh", &self.group.path(&volume.name)])
            .done_when(move |_| {
                let length = group.length(&device.uuid);
                length.is_ok_and(|length| length >= wanted)
            });
        Ok(Some(command))
    }
}
