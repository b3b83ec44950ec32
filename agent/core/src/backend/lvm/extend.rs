//! Activating volumes, and extending them online.

use std::{path::PathBuf, sync::Arc};

use drumlin_lvm::{
    command::Command,
    merges::check_no_merge,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
};

use super::{
    Change, Image, Lvm, Volumes,
    group::Group,
    name_of, node,
    tags::{self, Tags},
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::device_mapper::{Line, Mapped, SECTOR, SuspendMode},
    types::{ImageId, Size},
};

/// Whether a volume has a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activation {
    Active,
    Inactive,
}

impl Group {
    /// The length of a device, in bytes.
    fn length(&self, uuid: &str) -> Result<u64> {
        let table = self.mapper()?.table(uuid)?;
        let sectors: u64 = table.iter().map(|line| line.length).sum();
        Ok(sectors * SECTOR)
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
            self.lengthen(now, volume, &device).await?;
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
        let _claim = match &self.settings.volumes {
            Volumes::Thin(pool) => {
                let (name, bytes) = (name_of(id), to.bytes());
                Some(self.group.reservations.claim(&pool.name, name, bytes))
            }
            Volumes::Thick(_) => None,
        };
        let mut now = self.group.now().await?;
        if self.finished(&now, id)?.tags.is_growing {
            self.end_growth(id).await?;
            now = self.group.now().await?;
        }
        let found = self.finished(&now, id)?;
        let device = self.device(&now, found.volume)?;
        let was = device
            .as_ref()
            .map_or(Activation::Inactive, |_| Activation::Active);
        let before = now.bytes(found.volume);
        if to.bytes() <= before {
            // An earlier extension may have been interrupted between metadata and device.
            if let Some(device) = device {
                self.lengthen(&now, found.volume, &device).await?;
            }
            return Ok(Change::Already(self.image(&now, &found)?));
        }
        check_no_merge(&now, found.volume)?;
        let ahead = self.group.reservations.ahead_of(&name_of(id), &now);
        self.check_room(&now, to.bytes() - before, ahead).await?;
        match &self.settings.volumes {
            Volumes::Thin(_) => {
                let command = match device {
                    Some(_) => Command::on_disk("lvextend"),
                    None => Command::new("lvextend"),
                };
                let command = self.extension(command, found.volume, to);
                self.group.change(vec![command]).await?;
            }
            Volumes::Thick(thick) => {
                // Recovery must not take the volume with this name for a leftover.
                let _hand = self.group.in_flight.take(name_of(id));
                let grown = match self.extend_thick(&now, thick, &found, to).await {
                    Ok(commands) => self.group.change(commands).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = grown {
                    self.give_up_growth(id, was).await;
                    return Err(error);
                }
            }
        }
        fail::point("lvm.grow.recorded");
        self.end_growth(id).await?;
        let now = self.group.now().await?;
        let found = self.finished(&now, id)?;
        if let Some(device) = self.device(&now, found.volume)? {
            self.lengthen(&now, found.volume, &device).await?;
        }
        self.bring_back(id, was).await;
        fail::point("lvm.grow.lengthened");
        Ok(Change::Made(self.image(&now, &found)?))
    }

    /// Cleans up after a failed extension.
    async fn give_up_growth(&self, id: ImageId, was: Activation) {
        if let Err(error) = self.remove_end(id).await {
            tracing::warn!(image = %id, error = %error.chain(), "extents reserved for growing a volume not released");
        }
        self.bring_back(id, was).await;
    }

    /// Reactivates a volume that was deactivated to be extended, and removes the tag that says so.
    async fn end_growth(&self, id: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        let found = self.finished(&now, id)?;
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
        if was == Activation::Inactive || matches!(self.settings.volumes, Volumes::Thin(_)) {
            return;
        }
        let again = async {
            let now = self.group.now().await?;
            let found = self.finished(&now, id)?;
            self.activate(&now, found.volume).await
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

    /// Extends a device to the length in the metadata, if it is shorter. For an active thin volume LVM would suspend
    /// the whole pool, so the agent reloads that table itself: only this device is suspended, briefly.
    async fn lengthen(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        device: &Mapped,
    ) -> Result<()> {
        if let Volumes::Thick(_) = self.settings.volumes {
            return match self.refresh_if_short(now, volume)? {
                Some(refresh) => self.group.change(vec![refresh]).await,
                None => Ok(()),
            };
        }
        let sectors = now.bytes(volume) / SECTOR;
        let _hand = self.group.in_flight.take(device.uuid.clone());
        let (group, uuid, is_suspended) =
            (self.group.clone(), device.uuid.clone(), device.is_suspended);
        blocking(move || {
            let mapper = group.mapper()?;
            let table = mapper.table(&uuid)?;
            let [line] = table.as_slice() else {
                return Err(Error::new(
                    Kind::Precondition,
                    format!(
                        "device {uuid} has a device-mapper table that this agent does not know"
                    ),
                ));
            };
            if line.length >= sectors && !is_suspended {
                return Ok(());
            }
            if line.length < sectors {
                let longer = Line {
                    length: sectors,
                    ..line.clone()
                };
                mapper.load(&uuid, &[longer])?;
                mapper.suspend(&uuid, SuspendMode::Quick)?;
            }
            mapper.resume(&uuid)
        })
        .await
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
