//! Logical volumes: a thin pool of a volume group.
//!
//! The disks are the record: names, labels and sizes are tags of LVM's, born with the volume in one change of the
//! metadata. They are read from the disks without a program; every change is made by LVM's own programs, but for the
//! tables of devices that must not be held up.

mod group;
mod growing;
mod metadata;
mod program;
mod repair;
mod tags;
#[cfg(all(test, feature = "lab"))]
pub(super) mod testing;
mod thin;

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use self::{
    group::Group,
    metadata::{LogicalVolume, VolumeGroup},
    tags::Tags,
};
use super::{Backend, Capacity, Change, Features, Health, Image, ImageSpec, LabelChange};
use crate::{
    Error, Kind, Result,
    host::{Access, FileSystem, device_mapper::Mapped, holders},
    types::{ClassName, ImageId, ImageKind, NodeName, Size, SizeRules},
};

/// A thin pool as a class is configured with it.
#[derive(Debug, Clone)]
pub struct ThinSettings {
    /// The volume group.
    pub volume_group: String,
    /// The thin pool in it.
    pub pool: String,
    /// So many times the size of the pool may be promised, in hundredths.
    pub overcommit: u32,
    /// The class, and the node, whose volumes these are.
    pub class: ClassName,
    /// This node.
    pub node: NodeName,
    /// The file system of a volume whose creator named none.
    pub file_system: FileSystem,
}

/// A class over a thin pool.
#[derive(Debug)]
pub struct Thin {
    settings: ThinSettings,
    group: std::sync::Arc<Group>,
}

/// A volume of a class, and what its tags say.
#[derive(Debug, Clone)]
struct Ours<'a> {
    volume: &'a LogicalVolume,
    tags: Tags,
}

impl Thin {
    /// A class over a pool, which need not be there yet.
    pub fn new(settings: ThinSettings) -> Self {
        Self {
            group: Group::of(&settings.volume_group),
            settings,
        }
    }

    /// The volumes of this class, half-made ones too.
    fn ours<'a>(&'a self, now: &'a VolumeGroup) -> impl Iterator<Item = Ours<'a>> {
        let visible = now.volumes.values().filter(|volume| volume.is_visible);
        visible.filter_map(|volume| {
            let tags = Tags::read(&volume.tags)?;
            let is_ours = tags.class == self.settings.class.as_str()
                && tags.node == self.settings.node.as_str();
            is_ours.then_some(Ours { volume, tags })
        })
    }

    /// The volume of an image. LVM's own tools may have made two of one; then the one with our name counts.
    fn find<'a>(&'a self, now: &'a VolumeGroup, id: ImageId) -> Option<Ours<'a>> {
        let mut found: Vec<Ours<'a>> = self.ours(now).filter(|ours| ours.tags.id == id).collect();
        found.sort_by_key(|ours| ours.volume.name != name_of(id));
        found.into_iter().next()
    }

    /// The volume of an image that may be changed.
    fn finished<'a>(&'a self, now: &'a VolumeGroup, id: ImageId) -> Result<Ours<'a>> {
        let found = self.find(now, id).filter(|ours| !ours.tags.is_undone);
        let found = found.ok_or_else(|| Error::not_found(format!("{id} does not exist")))?;
        match image(now, &found).health {
            Health::Unreadable(why) => Err(Error::new(
                Kind::Precondition,
                format!("{id} cannot be changed: {why}"),
            )),
            Health::Good | Health::Damaged(_) => Ok(found),
        }
    }

    async fn ready(&self) -> Result<()> {
        self.group.ready(&self.settings.node).await
    }

    /// The device of a volume, when it has one that works.
    fn device(&self, now: &VolumeGroup, volume: &LogicalVolume) -> Result<Option<Mapped>> {
        let found = self.group.mapper()?.find(&now.mapped_uuid(volume))?;
        Ok(found.filter(|device| device.is_live))
    }
}

/// Refuses what somebody has open, saying who.
fn check_unused(device: &Mapped) -> Result<()> {
    if device.open == 0 {
        return Ok(());
    }
    let path = path_of(device);
    let users = holders::users_of_device(&path);
    Err(holders::device_in_use(&path, &users))
}

/// The name that we give to the volume of an image.
fn name_of(id: ImageId) -> String {
    let kind = match id.kind {
        ImageKind::Volume => 'v',
        ImageKind::Snapshot => 's',
    };
    format!("dl-{kind}-{}", id.key)
}

fn path_of(device: &Mapped) -> PathBuf {
    Path::new("/dev/mapper").join(&device.name)
}

/// What the callers of a back end see of a volume.
fn image(now: &VolumeGroup, ours: &Ours<'_>) -> Image {
    let bytes = ours.tags.size.unwrap_or_else(|| now.bytes(ours.volume));
    let health = if ours.tags.is_newer {
        Health::Unreadable("its tags are of a newer agent; use that".to_owned())
    } else if !ours.volume.is_complete {
        Health::Damaged(format!("a disk of volume group {} is missing", now.name))
    } else {
        Health::Good
    };
    Image {
        id: ours.tags.id,
        size: Size::try_from(bytes).unwrap_or_default(),
        labels: ours.tags.labels.clone(),
        health,
    }
}

#[async_trait]
impl Backend for Thin {
    async fn features(&self) -> Result<Features> {
        let now = self.group.now().await?;
        let extent = Size::try_from(now.extent)?;
        Ok(Features {
            sizes: SizeRules {
                unit: extent,
                minimum: extent,
                default: Size::from_mebibytes(1024),
            },
            file_system: self.settings.file_system,
            keeps_devices: true,
        })
    }

    async fn check(&self) -> Result<()> {
        let now = self.group.now().await?;
        self.pool_state(&now).map(drop)
    }

    async fn recover(&self) -> Result<()> {
        self.ready().await
    }

    async fn capacity(&self) -> Result<Capacity> {
        let now = self.group.now().await?;
        self.room(&now)
    }

    async fn list(&self, kind: ImageKind) -> Result<Vec<Image>> {
        let now = self.group.now().await?;
        Ok(self
            .ours(&now)
            .filter(|ours| ours.tags.id.kind == kind && !ours.tags.is_undone)
            .map(|ours| image(&now, &ours))
            .collect())
    }

    async fn get(&self, id: ImageId) -> Result<Option<Image>> {
        let now = self.group.now().await?;
        let found = self.find(&now, id).filter(|ours| !ours.tags.is_undone);
        Ok(found.map(|ours| image(&now, &ours)))
    }

    async fn create(&self, spec: &ImageSpec) -> Result<Change<Image>> {
        self.ready().await?;
        self.make(spec).await
    }

    async fn grow(&self, id: ImageId, to: Size) -> Result<Change<Image>> {
        self.ready().await?;
        self.extend(id, to).await
    }

    async fn relabel(&self, id: ImageId, change: &LabelChange) -> Result<Change<Image>> {
        self.ready().await?;
        let now = self.group.now().await?;
        let found = self.finished(&now, id)?;
        let before = image(&now, &found);
        let Some(labels) = change.apply(&before.labels) else {
            return Ok(Change::Already(before));
        };
        let tags = |labels: &super::Labels| -> Vec<String> {
            labels
                .iter()
                .map(|(key, value)| tags::label(key, value))
                .collect()
        };
        let (old, new) = (tags(&before.labels), tags(&labels));
        let added = new.iter().filter(|tag| !old.contains(tag)).cloned();
        let removed = old.iter().filter(|tag| !new.contains(tag));
        let command = program::Command::new("lvchange")
            .add_tags(added)
            .words(removed.flat_map(|tag| ["--deltag".to_owned(), tag.clone()]))
            .words([self.group.path(&found.volume.name)]);
        let uuid = found.volume.uuid.clone();
        let command = command.done_when(move |now| {
            let mut volumes = now.volumes.values();
            let tags = volumes
                .find(|volume| volume.uuid == uuid)
                .and_then(|volume| Tags::read(&volume.tags));
            tags.is_some_and(|tags| tags.labels == labels)
        });
        self.group.change(vec![command]).await?;
        let now = self.group.now().await?;
        Ok(Change::Made(image(&now, &self.finished(&now, id)?)))
    }

    async fn delete(&self, id: ImageId) -> Result<Change<()>> {
        self.ready().await?;
        let now = self.group.now().await?;
        let Some(found) = self.find(&now, id) else {
            return Ok(Change::Already(()));
        };
        if let Some(device) = self.device(&now, found.volume)? {
            check_unused(&device)?;
        }
        self.remove(found.volume).await?;
        Ok(Change::Made(()))
    }

    async fn attach(&self, id: ImageId, _: Access) -> Result<PathBuf> {
        self.ready().await?;
        let now = self.group.now().await?;
        let found = self.finished(&now, id)?;
        if let Health::Damaged(why) = image(&now, &found).health {
            return Err(Error::new(
                Kind::Precondition,
                format!("{id} cannot be used: {why}"),
            ));
        }
        self.activate(&now, found.volume).await
    }

    async fn devices(&self, id: ImageId) -> Result<Vec<PathBuf>> {
        let now = self.group.now().await?;
        let found = self.finished(&now, id)?;
        let device = self.device(&now, found.volume)?;
        Ok(device.iter().map(path_of).collect())
    }

    /// Leaves the device where it is: making it again costs a program, and it costs nothing while nobody uses it.
    async fn detach(&self, id: ImageId) -> Result<Change<()>> {
        let now = self.group.now().await?;
        if let Some(found) = self.find(&now, id)
            && let Some(device) = self.device(&now, found.volume)?
        {
            check_unused(&device)?;
        }
        Ok(Change::Already(()))
    }
}
