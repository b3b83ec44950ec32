//! Devices: giving a volume one, and making it longer while it is used.

use std::{path::PathBuf, sync::Arc};

use super::{
    Change, Image, Lvm, Volumes,
    metadata::{LogicalVolume, VolumeGroup},
    name_of, node,
    program::Command,
    tags::Tags,
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::device_mapper::{Hold, Line, Mapped, SECTOR},
    types::{ImageId, Size},
};

impl Lvm {
    /// The device of a volume, as long as the volume is; LVM makes it when there is none.
    pub(super) async fn activate(
        &self,
        now: &VolumeGroup,
        volume: &LogicalVolume,
    ) -> Result<PathBuf> {
        if let Some(device) = self.device(now, volume)? {
            self.lengthen(now, volume, &device).await?;
            return node(device).await;
        }
        // Snapshots have a mark that keeps them from being activated with all others.
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
                    "{} was activated and has no device",
                    self.group.path(&volume.name)
                ),
            )
        })?;
        node(device).await
    }

    /// Makes a volume longer.
    pub(super) async fn extend(&self, id: ImageId, to: Size) -> Result<Change<Image>> {
        let _claim = match &self.settings.volumes {
            Volumes::Thin(pool) => {
                let (name, bytes) = (name_of(id), to.bytes());
                Some(self.group.claims.claim(&pool.name, name, bytes))
            }
            Volumes::Thick(_) => None,
        };
        let mut now = self.group.now().await?;
        if self.finished(&now, id)?.tags.clean.is_some() {
            // What a growth before this one has not wiped yet, this one must not show.
            self.clean(id).await?;
            now = self.group.now().await?;
        }
        let found = self.finished(&now, id)?;
        let device = self.device(&now, found.volume)?;
        let (was_live, before) = (device.is_some(), now.bytes(found.volume));
        if to.bytes() <= before {
            // An earlier growth may have ended between the metadata and the device.
            if let Some(device) = device {
                self.lengthen(&now, found.volume, &device).await?;
            }
            return Ok(Change::Already(self.image(&now, &found)?));
        }
        let ahead = self.group.claims.ahead_of(&name_of(id), &now);
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
                let commands = self.extend_thick(&now, thick, &found, to).await?;
                if let Err(error) = self.group.change(commands).await {
                    self.bring_back(id, was_live).await;
                    return Err(error);
                }
            }
        }
        fail::point("lvm.grow.recorded");
        self.clean(id).await?;
        let now = self.group.now().await?;
        let found = self.finished(&now, id)?;
        if let Some(device) = self.device(&now, found.volume)? {
            self.lengthen(&now, found.volume, &device).await?;
        }
        self.bring_back(id, was_live).await;
        fail::point("lvm.grow.lengthened");
        Ok(Change::Made(self.image(&now, &found)?))
    }

    /// Gives a volume its device back that it had before it grew: it may be staged, and who publishes it does not look.
    async fn bring_back(&self, id: ImageId, had_one: bool) {
        if !had_one || matches!(self.settings.volumes, Volumes::Thin(_)) {
            return;
        }
        let again = async {
            let now = self.group.now().await?;
            let found = self.finished(&now, id)?;
            self.activate(&now, found.volume).await
        };
        if let Err(error) = again.await {
            tracing::warn!(image = %id, error = %error.chain(), "a volume that was grown has no device now");
        }
    }

    /// The command that makes a volume as long as asked.
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

    /// Gives a device the length that the metadata says, if it is shorter. For one that is active LVM would stop the
    /// whole pool, so a thin one gets its longer table from us: it alone stops, for a moment.
    async fn lengthen(
        &self,
        now: &VolumeGroup,
        volume: &LogicalVolume,
        device: &Mapped,
    ) -> Result<()> {
        if let Volumes::Thick(_) = self.settings.volumes {
            let is_dirty = Tags::read(&volume.tags).is_some_and(|tags| tags.clean.is_some());
            let refresh = self.refresh_if_short(now, volume)?.filter(|_| !is_dirty);
            return match refresh {
                Some(refresh) => self.group.change(vec![refresh]).await,
                None => Ok(()),
            };
        }
        let sectors = now.bytes(volume) / SECTOR;
        let _hand = self.group.in_hand.take(device.uuid.clone());
        let (group, uuid, is_suspended) =
            (self.group.clone(), device.uuid.clone(), device.is_suspended);
        blocking(move || {
            let mapper = group.mapper()?;
            let table = mapper.table(&uuid)?;
            let [line] = table.as_slice() else {
                return Err(Error::new(
                    Kind::Precondition,
                    format!("device {uuid} has an unknown table"),
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
                mapper.suspend(&uuid, Hold::Quick)?;
            }
            mapper.resume(&uuid)
        })
        .await
    }
}
