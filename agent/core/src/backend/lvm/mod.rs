//! The LVM back end: thin volumes in a pool, and thick volumes of a volume group's own extents.
//!
//! The disks are the only record: names, labels and sizes are LVM tags, created together with the volume in one
//! metadata change. They are read from the disks without running a program. All changes are made by LVM's own
//! commands, except for table reloads of devices that must not be suspended for long.

mod adopt_node;
mod create;
mod extend;
mod flushing;
mod group;
mod group_records;
mod group_snapshot;
mod layers;
mod recovery;
mod rollback;
mod settings;
mod tags;
#[cfg(all(test, feature = "lab"))]
pub(super) mod testing;
mod thick;
mod thin;
mod volume_type;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

use async_trait::async_trait;
use drumlin_lvm::{
    command,
    in_flight::InFlightGuard,
    merges::check_no_merge,
    metadata::{self, GroupMetadata, LogicalVolume, VolumeKind},
    placement::NOTES,
    reservations::Reservation,
};
use tokio::sync::OnceCell;

pub use self::settings::{
    Layout, LvmSettings, NewPool, PoolLimits, PoolSize, Provisioning, Thick, ThinPool, Wipe,
};
pub use self::thin::create_pool::POOL_METADATA;
use self::{group::Group, tags::Tags, thick::copy::Running, volume_type::VolumeType};
use super::{Backend, Capacity, Change, Family, Features, Health, Image, ImageSpec, LabelChange};
use crate::{
    Error, Kind, Result, blocking,
    host::{
        Access, DeviceNumber, MountTable, device_mapper::Mapped, holders, quiesce::QuiescePlan,
    },
    types::{Handle, ImageId, ImageKind, Size, SizeRules},
};

/// A device class of logical volumes.
#[derive(Debug)]
pub struct Lvm {
    settings: LvmSettings,
    group: Arc<Group>,
    running: Running,
    /// Volumes whose creation has begun and that are not filled yet.
    unfilled: Mutex<HashMap<ImageId, InFlightGuard>>,
    /// Set once the volumes of other nodes are adopted.
    adopted: OnceCell<()>,
    /// Set once the pool exists or was created: a pool that is removed manually is not created again.
    has_pool: OnceCell<()>,
    /// The recovery round of the group after which its pool was searched for orphan thin devices.
    looked_for_orphans: tokio::sync::Mutex<u64>,
    /// The warning that the pool is filling up was logged.
    is_warned: AtomicBool,
}

/// A volume of the class, and its parsed tags.
#[derive(Debug, Clone)]
pub(crate) struct OwnVolume<'a> {
    volume: &'a LogicalVolume,
    tags: Tags,
}

impl Lvm {
    /// A class in a volume group, which need not exist yet.
    pub fn new(settings: LvmSettings) -> Self {
        Self {
            group: Group::of(&settings.volume_group),
            settings,
            running: Running::default(),
            unfilled: Mutex::default(),
            adopted: OnceCell::new(),
            has_pool: OnceCell::new(),
            looked_for_orphans: tokio::sync::Mutex::default(),
            is_warned: AtomicBool::new(false),
        }
    }

    /// The volumes of this class, including incomplete ones.
    fn ours<'a>(&'a self, now: &'a GroupMetadata) -> impl Iterator<Item = OwnVolume<'a>> {
        visible(now).filter_map(|volume| {
            let tags = self.tags_of(volume)?;
            Some(OwnVolume { volume, tags })
        })
    }

    /// The tags of a volume, if it belongs to this class.
    fn tags_of(&self, volume: &LogicalVolume) -> Option<Tags> {
        let tags = Tags::read(&volume.tags)?;
        let is_ours =
            tags.class == self.settings.class.as_str() && tags.node == self.settings.node.as_str();
        is_ours.then_some(tags)
    }

    /// The volume of an image. If LVM's own tools have created a second one, the volume with our name takes
    /// precedence.
    fn find<'a>(&'a self, now: &'a GroupMetadata, id: ImageId) -> Option<OwnVolume<'a>> {
        let mut found: Vec<OwnVolume<'a>> =
            self.ours(now).filter(|ours| ours.tags.id == id).collect();
        found.sort_by_key(|ours| (ours.tags.is_incomplete, ours.volume.name != name_of(id)));
        found.into_iter().next()
    }

    /// The complete volume of an image, which may be changed.
    fn finished<'a>(&'a self, now: &'a GroupMetadata, id: ImageId) -> Result<OwnVolume<'a>> {
        let found = self.find(now, id).filter(|ours| !ours.tags.is_incomplete);
        let found = found.ok_or_else(|| Error::not_found(format!("{id} does not exist")))?;
        match self.image(now, &found)?.health {
            Health::Unreadable(why) => Err(Error::new(
                Kind::Precondition,
                format!("{id} cannot be changed: {why}"),
            )),
            Health::Good | Health::Degraded(_) | Health::Damaged(_) => Ok(found),
        }
    }

    /// As [`Lvm::finished`], and no snapshot is being merged into it.
    fn settled<'a>(&'a self, now: &'a GroupMetadata, id: ImageId) -> Result<OwnVolume<'a>> {
        let found = self.finished(now, id)?;
        check_no_merge(now, found.volume)?;
        Ok(found)
    }

    /// A volume as callers of the back end see it.
    fn image(&self, now: &GroupMetadata, ours: &OwnVolume<'_>) -> Result<Image> {
        let bytes = ours.tags.size.unwrap_or_else(|| now.bytes(ours.volume));
        let health = if ours.tags.is_newer {
            Health::Unreadable(
                "its tags were written by a newer agent; upgrade this agent".to_owned(),
            )
        } else if let Some(flag) = &ours.volume.unknown_flag {
            Health::Unreadable(metadata::unknown_flag(flag))
        } else if !ours.volume.is_complete {
            Health::Damaged(format!("a disk of volume group {} is missing", now.name))
        } else {
            match (&ours.volume.kind, &ours.volume.layer) {
                (_, Some(layer)) => self.layer_health(now, ours.volume, layer)?,
                (VolumeKind::Snapshot { .. }, None) => self.snapshot_health(now, ours.volume)?,
                (VolumeKind::Mirrored, None) => self.mirror_health(now, ours.volume)?,
                _ => Health::Good,
            }
        };
        Ok(Image {
            id: ours.tags.id,
            size: Size::try_from(bytes).unwrap_or_default(),
            labels: ours.tags.labels.clone(),
            health,
        })
    }

    /// The size rules of the class.
    fn sizes(&self, extent: u64) -> Result<SizeRules> {
        let extents = self.volume_type().extents_per_unit();
        let unit = Size::try_from(extent.saturating_mul(extents))?;
        Ok(SizeRules {
            unit,
            minimum: unit,
            default: Size::from_mebibytes(1024).round_up(unit).unwrap_or(unit),
        })
    }

    /// The operations of the type of its volumes.
    fn volume_type(&self) -> &dyn VolumeType {
        self.settings.provisioning.volume_type()
    }

    /// Reserves the future size of a volume, where all volumes share a capacity.
    fn reserve(&self, id: ImageId, size: Size) -> Option<Reservation> {
        let pool = self.volume_type().pool()?;
        Some(
            self.group
                .reservations
                .claim(pool, name_of(id), size.bytes()),
        )
    }

    /// Refuses a change when LVM's metadata area is nearly full.
    ///
    /// A second copy of the metadata must fit beside the current one, and existing volumes must still be able to get
    /// labels: LVM itself would fill the area to the last byte, and then no volume could be published any more.
    fn check_records(now: &GroupMetadata) -> Result<()> {
        /// In percent.
        const FULL: u64 = 90;
        let part = now.text.saturating_mul(100) / now.largest_text.max(1);
        if part < FULL {
            return Ok(());
        }
        Err(Error::new(
            Kind::NoSpace,
            format!(
                "{part} % of LVM's metadata area on volume group {name} is used ({} of {} bytes); delete volumes or snapshots, or add a disk with a larger metadata area (pvcreate --metadatasize 64m DISK; vgextend {name} DISK) and run pvchange --metadataignore y on the other disks",
                now.text,
                now.largest_text,
                name = now.name
            ),
        ))
    }

    /// The handle by which callers know an image.
    fn handle(&self, id: ImageId) -> Handle {
        Handle {
            node: self.settings.node.clone(),
            class: self.settings.class.clone(),
            key: id.key,
        }
    }

    async fn ready(&self) -> Result<()> {
        self.group.check_answers()?;
        self.group.ready(&self.settings.node).await?;
        self.adopt().await?;
        self.volume_type().recover(self).await;
        Ok(())
    }

    /// The device of a volume, if it is active and has a table.
    fn device(&self, now: &GroupMetadata, volume: &LogicalVolume) -> Result<Option<Mapped>> {
        let found = self.group.mapper()?.find(&now.mapped_uuid(volume))?;
        Ok(found.filter(|device| device.is_live))
    }
}

/// The volumes that are not parts of others.
fn visible(now: &GroupMetadata) -> impl Iterator<Item = &LogicalVolume> {
    // The metadata volumes of a mirror's legs have its tags, and are visible during its creation.
    now.volumes
        .values()
        .filter(|volume| volume.is_visible && !volume.name.contains(NOTES))
}

/// Refuses a device that is in use or could be opened, naming its holders.
fn check_unused(device: &Mapped) -> Result<()> {
    let path = device.path();
    if device.open == 0 && !is_mounted(device)? {
        return Ok(());
    }
    let users = holders::users_of_device(&path);
    Err(holders::device_in_use(&path, &users))
}

/// Returns true if a device, or its node, is mounted: a raw volume is in use while its node is published, open or
/// not.
fn is_mounted(device: &Mapped) -> Result<bool> {
    let path = device.path();
    let number = DeviceNumber::of_block_device(&path).unwrap_or(device.number);
    let table = MountTable::read()?;
    Ok(table.of_block_device(&path, number).next().is_some())
}

/// Marks a volume in a full pool as degraded: it is usable, but its writes may fail. A snapshot is not written to.
fn endangered(image: Image, danger: Option<&str>) -> Image {
    match danger {
        Some(why) if image.id.kind == ImageKind::Volume && image.health == Health::Good => Image {
            health: Health::Degraded(why.to_owned()),
            ..image
        },
        _ => image,
    }
}

/// The logical-volume name of an image.
fn name_of(id: ImageId) -> String {
    let kind = match id.kind {
        ImageKind::Volume => 'v',
        ImageKind::Snapshot => 's',
        // They have no volume.
        ImageKind::Group | ImageKind::GroupSnapshot => 'g',
    };
    format!("dl-{kind}-{}", id.key)
}

/// The name of the temporary snapshot that an image is copied from.
fn moment_of(id: ImageId) -> String {
    format!("dl-t-{}", id.key)
}

/// The name of the temporary volume as which the extents for an extension are wiped.
fn end_of(id: ImageId) -> String {
    format!("dl-e-{}", id.key)
}

/// The node of a device; waits only if it does not exist yet.
async fn node(device: Mapped) -> Result<PathBuf> {
    if device.has_node() {
        return Ok(device.path());
    }
    blocking(move || device.node()).await
}

/// Parses the text of a volume group as it is on disk.
pub(crate) fn read_metadata(text: &str) {
    metadata::read_all(text, |volume| {
        let _ = Tags::read(&volume.tags);
    });
}

#[async_trait]
impl Backend for Lvm {
    fn family(&self) -> Family {
        Family::Lvm
    }

    async fn features(&self) -> Result<Features> {
        let extent = self.group.extent().await?;
        Ok(Features {
            sizes: self.sizes(extent)?,
            file_system: self.settings.file_system,
            keeps_devices: true,
            // A thick volume keeps discarded extents, but its disk can use the discard for wear levelling.
            takes_back: true,
        })
    }

    async fn check(&self) -> Result<()> {
        let now = self.group.now().await?;
        self.volume_type().check(self, &now).await
    }

    async fn recover(&self) -> Result<()> {
        self.ready().await
    }

    async fn capacity(&self) -> Result<Capacity> {
        let now = self.group.now().await?;
        self.volume_type().capacity(self, &now).await
    }

    async fn list(&self, kind: ImageKind) -> Result<Vec<Image>> {
        self.adopt_first().await?;
        if !kind.has_bytes() {
            return self.list_records(kind).await;
        }
        let now = self.group.now().await?;
        let danger = self.volume_type().danger(self, &now).await;
        self.ours(&now)
            .filter(|ours| ours.tags.id.kind == kind && !ours.tags.is_incomplete)
            .map(|ours| Ok(endangered(self.image(&now, &ours)?, danger.as_deref())))
            .collect()
    }

    async fn get(&self, id: ImageId) -> Result<Option<Image>> {
        self.adopt_first().await?;
        if !id.kind.has_bytes() {
            return self.get_record(id).await;
        }
        let now = self.group.now().await?;
        let found = self.find(&now, id).filter(|ours| !ours.tags.is_incomplete);
        let Some(found) = found else { return Ok(None) };
        let danger = self.volume_type().danger(self, &now).await;
        let image = self.image(&now, &found)?;
        Ok(Some(endangered(image, danger.as_deref())))
    }

    async fn create(&self, spec: &ImageSpec) -> Result<Change<Image>> {
        self.ready().await?;
        if !spec.id.kind.has_bytes() {
            return self.create_record(spec).await;
        }
        self.volume_type().prepare(self).await?;
        self.make(spec).await
    }

    async fn finish(&self, spec: &ImageSpec) -> Result<()> {
        self.volume_type().fill(self, spec).await
    }

    async fn check_group_snapshot(&self, specs: &[ImageSpec]) -> Result<()> {
        self.check_copies(specs).await
    }

    async fn prepare_group_snapshot(&self, specs: &[ImageSpec]) -> Result<QuiescePlan> {
        self.prepare_copies(specs).await
    }

    async fn flush_group_snapshot(&self, specs: &[ImageSpec]) -> Result<()> {
        self.volume_type()
            .follow_up_group_snapshot(self, specs)
            .await
    }

    async fn check_rollback(&self, pairs: &[(ImageId, ImageId)]) -> Result<()> {
        Self::check_rollback(self, pairs).await
    }

    async fn roll_back(&self, id: ImageId, from: ImageId) -> Result<()> {
        Self::roll_back(self, id, from).await
    }

    fn progress(&self, id: ImageId) -> Option<String> {
        self.running.describe(id)
    }

    fn stop(&self) {
        self.running.stop();
    }

    async fn grow(&self, id: ImageId, to: Size) -> Result<Change<Image>> {
        self.ready().await?;
        self.extend(id, to).await
    }

    async fn relabel(&self, id: ImageId, change: &LabelChange) -> Result<Change<Image>> {
        self.ready().await?;
        if !id.kind.has_bytes() {
            return self.relabel_record(id, change).await;
        }
        let now = self.group.now().await?;
        let found = self.finished(&now, id)?;
        let before = self.image(&now, &found)?;
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
        let command = command::Command::new("lvchange")
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
        Ok(Change::Made(self.image(&now, &self.finished(&now, id)?)?))
    }

    async fn delete(&self, id: ImageId) -> Result<Change<()>> {
        self.ready().await?;
        if !id.kind.has_bytes() {
            return self.delete_record(id).await;
        }
        let now = self.group.now().await?;
        let Some(found) = self.find(&now, id) else {
            return Ok(Change::Already(()));
        };
        check_no_merge(&now, found.volume)?;
        self.check_idle(&now, found.volume).await?;
        if found.tags.is_incomplete {
            self.volume_type().remove_incomplete(self, &found).await?;
            return Ok(Change::Already(()));
        }
        self.volume_type().remove(self, &found).await?;
        Ok(Change::Made(()))
    }

    async fn deleting(&self) -> Result<Vec<ImageId>> {
        let now = self.group.now().await?;
        Ok(self.left_behind(&now).map(|ours| ours.tags.id).collect())
    }

    async fn end_deletion(&self, id: ImageId) -> Result<()> {
        self.volume_type().end_removal(self, id).await
    }

    async fn usage(&self, id: ImageId) -> Result<Option<u64>> {
        let now = self.group.now().await?;
        self.taken(&now, &self.finished(&now, id)?).await
    }

    async fn attach(&self, id: ImageId, _: Access) -> Result<PathBuf> {
        self.ready().await?;
        let now = self.group.now().await?;
        let found = self.finished(&now, id)?;
        if let Health::Damaged(why) = self.image(&now, &found)?.health {
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
        match device {
            Some(device) => Ok(vec![node(device).await?]),
            None => Ok(Vec::new()),
        }
    }

    /// Leaves the device active: activating it again costs a program, and an unused device costs nothing.
    async fn detach(&self, id: ImageId) -> Result<Change<()>> {
        let now = self.group.now().await?;
        if let Some(found) = self.find(&now, id) {
            self.check_idle(&now, found.volume).await?;
        }
        Ok(Change::Already(()))
    }
}
