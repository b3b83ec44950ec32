//! Another identity for an image: its tags, in one change of the metadata, and then the name of its logical volume.
//!
//! A volume is found by its tags, so that one whose name was not changed yet, because the agent was killed in between, is
//! what its tags say. Its name would be in the way of a new volume alone: it is completed before that is created.

use drumlin_lvm::{
    command::Command,
    merges::check_no_merge,
    metadata::{GroupMetadata, LogicalVolume},
};

use super::{Change, Image, LabelChange, Lvm, OwnVolume, name_of, tags};
use crate::{Error, Kind, Result, fail, types::ImageId};

impl Lvm {
    /// Renames an image and changes its labels.
    pub(super) async fn rename_image(
        &self,
        from: ImageId,
        to: ImageId,
        change: &LabelChange,
    ) -> Result<Change<Image>> {
        let now = self.group.now().await?;
        let is_there = |id| {
            let found = self.find(&now, id);
            found.is_some_and(|found| !found.tags.is_incomplete)
        };
        match (is_there(from), is_there(to)) {
            (false, true) => {
                self.complete_rename(&now, to).await?;
                return Ok(Change::Already(self.renamed(to).await?));
            }
            (true, true) => {
                return Err(Error::new(
                    Kind::Conflict,
                    format!("{from} cannot become {to}, which exists"),
                ));
            }
            (_, false) => {}
        }
        let found = self.complete_volume(&now, from)?;
        check_no_merge(&now, found.volume)?;
        self.check_not_copied(&now, from)?;
        self.check_idle(&now, found.volume).await?;
        self.group
            .change(vec![self.retagging(&found, to, change)])
            .await?;
        fail::point("lvm.rename.tagged");
        let now = self.group.now().await?;
        self.complete_rename(&now, to).await?;
        Ok(Change::Made(self.renamed(to).await?))
    }

    /// The command that changes what a volume is.
    fn retagging(&self, found: &OwnVolume<'_>, to: ImageId, change: &LabelChange) -> Command {
        let mut after = tags::Tags {
            id: to,
            ..found.tags.clone()
        };
        if let Some(labels) = change.apply(&after.labels) {
            after.labels = labels;
        }
        let uuid = found.volume.uuid.clone();
        tags::changed(&found.tags.write(), &after.write())
            .words([self.group.path(&found.volume.name)])
            .done_when(move |now| {
                let volume = now.volumes.values().find(|volume| volume.uuid == uuid);
                let tags = volume.and_then(|volume| tags::Tags::read(&volume.tags));
                tags.is_some_and(|tags| tags.id == to)
            })
    }

    async fn renamed(&self, id: ImageId) -> Result<Image> {
        let now = self.group.now().await?;
        self.image(&now, &self.complete_volume(&now, id)?)
    }

    /// Gives the volume of an image its name, if it has that of another image.
    async fn complete_rename(&self, now: &GroupMetadata, id: ImageId) -> Result<()> {
        let found = self.find(now, id);
        match found.and_then(|found| self.naming(found.volume, id)) {
            Some(command) => self.group.change(vec![command]).await,
            None => Ok(()),
        }
    }

    /// The command that gives the volume that has the name of the image `id`, and is another one, its own name; none if
    /// the name is free, or its volume's own.
    pub(super) fn freeing(&self, now: &GroupMetadata, id: ImageId) -> Option<Command> {
        let holder = now.volumes.get(&name_of(id))?;
        let tags = self.tags_of(holder)?;
        if tags.id == id || tags.is_newer {
            return None;
        }
        self.naming(self.find(now, tags.id)?.volume, tags.id)
    }

    /// The command that gives a volume the name of its image; none if it has it, or one that an administrator gave it.
    fn naming(&self, volume: &LogicalVolume, id: ImageId) -> Option<Command> {
        let name = name_of(id);
        let is_of_another = volume.name != name && volume.name.starts_with("dl-");
        is_of_another.then(|| self.renaming(volume, name))
    }

    /// The command that gives a volume another name.
    pub(super) fn renaming(&self, volume: &LogicalVolume, name: String) -> Command {
        let uuid = volume.uuid.clone();
        Command::new("lvrename")
            .words([self.group.path(&volume.name), self.group.path(&name)])
            .done_when(move |now| {
                let found = now.volumes.get(&name);
                found.is_some_and(|volume| volume.uuid == uuid)
            })
    }
}
