//! A class of logical volumes: its volumes in the metadata of the group, and what they are to callers.

use std::sync::Arc;

use drumlin_lvm::{
    merges::check_no_merge,
    metadata::{self, GroupMetadata, LogicalVolume, VolumeKind},
    placement::NOTES,
    reservations::Reservation,
};
use tokio::sync::OnceCell;

use super::{LvmSettings, group::Group, names::name_of, tags::Tags, volume_type::VolumeType};
use crate::{
    Error, Kind, Result,
    backend::{Health, Image, Reason, Running},
    host::device_mapper::Mapped,
    types::{Handle, ImageId, Size, SizeRules},
};

/// A device class of logical volumes.
#[derive(Debug)]
pub struct Lvm {
    pub(super) settings: LvmSettings,
    pub(super) group: Arc<Group>,
    pub(super) running: Running,
    /// Set once the volumes of other nodes are adopted.
    pub(super) adopted: OnceCell<()>,
    /// The operations of the type of its volumes.
    pub(super) volume_type: Arc<dyn VolumeType>,
}

/// A volume of the class, and its parsed tags.
#[derive(Debug, Clone)]
pub(crate) struct OwnVolume<'a> {
    pub(super) volume: &'a LogicalVolume,
    pub(super) tags: Tags,
}

impl OwnVolume<'_> {
    /// Its size as it was asked for, in bytes: that of the logical volume where its tags have none.
    pub(super) fn bytes(&self, now: &GroupMetadata) -> u64 {
        self.tags.size.unwrap_or_else(|| now.bytes(self.volume))
    }
}

impl Lvm {
    /// A class in a volume group, which need not exist yet.
    pub fn new(settings: LvmSettings) -> Self {
        Self {
            group: Group::of(&settings.volume_group),
            running: Running::default(),
            adopted: OnceCell::new(),
            volume_type: settings.provisioning.volume_type(),
            settings,
        }
    }

    /// The volumes of this class, including incomplete ones.
    pub(super) fn ours<'a>(
        &'a self,
        now: &'a GroupMetadata,
    ) -> impl Iterator<Item = OwnVolume<'a>> {
        visible(now).filter_map(|volume| {
            let tags = self.tags_of(volume)?;
            Some(OwnVolume { volume, tags })
        })
    }

    /// The tags of a volume, if it belongs to this class.
    pub(super) fn tags_of(&self, volume: &LogicalVolume) -> Option<Tags> {
        let tags = Tags::read(&volume.tags)?;
        let is_ours =
            tags.class == self.settings.class.as_str() && tags.node == self.settings.node.as_str();
        is_ours.then_some(tags)
    }

    /// The volume of an image. If LVM's own tools have created a second one, the volume with our name takes
    /// precedence.
    pub(super) fn find<'a>(&'a self, now: &'a GroupMetadata, id: ImageId) -> Option<OwnVolume<'a>> {
        let mut found: Vec<OwnVolume<'a>> =
            self.ours(now).filter(|ours| ours.tags.id == id).collect();
        found.sort_by_key(|ours| (ours.tags.is_incomplete, ours.volume.name != name_of(id)));
        found.into_iter().next()
    }

    /// The complete volume of an image, which may be changed.
    pub(super) fn complete_volume<'a>(
        &'a self,
        now: &'a GroupMetadata,
        id: ImageId,
    ) -> Result<OwnVolume<'a>> {
        let found = self.find(now, id).filter(|ours| !ours.tags.is_incomplete);
        let found = found.ok_or_else(|| Error::not_found(format!("{id} does not exist")))?;
        match self.image(now, &found)?.health {
            Health::Unreadable(fault) => Err(Error::new(
                Kind::Precondition,
                format!("{id} cannot be changed: {}", fault.message),
            )),
            Health::Good | Health::Degraded(_) | Health::Damaged(_) => Ok(found),
        }
    }

    /// As [`Lvm::complete_volume`], and no snapshot is being merged into it.
    pub(super) fn unmerged_volume<'a>(
        &'a self,
        now: &'a GroupMetadata,
        id: ImageId,
    ) -> Result<OwnVolume<'a>> {
        let found = self.complete_volume(now, id)?;
        check_no_merge(now, found.volume)?;
        Ok(found)
    }

    /// A volume as callers of the back end see it.
    pub(super) fn image(&self, now: &GroupMetadata, ours: &OwnVolume<'_>) -> Result<Image> {
        let health = if ours.tags.is_newer {
            Health::unreadable("its tags were written by a newer agent; upgrade this agent")
        } else if let Some(flag) = &ours.volume.unknown_flag {
            Health::unreadable(metadata::unknown_flag(flag))
        } else if !ours.volume.is_complete {
            Health::damaged(
                Reason::DiskMissing,
                format!("a disk of volume group {} is missing", now.name),
            )
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
            size: Size::try_from(ours.bytes(now)).unwrap_or_default(),
            labels: ours.tags.labels.clone(),
            health,
        })
    }

    /// The size rules of the class.
    pub(super) fn sizes(&self, extent_size: u64) -> Result<SizeRules> {
        let extents = self.volume_type().extents_per_unit();
        let unit = Size::try_from(extents.bytes(extent_size))?;
        Ok(SizeRules {
            unit,
            minimum: unit,
            default: Size::from_mebibytes(1024).round_up(unit).unwrap_or(unit),
        })
    }

    /// The operations of the type of its volumes.
    pub(super) fn volume_type(&self) -> &dyn VolumeType {
        &*self.volume_type
    }

    /// Reserves the future size of the volume with this name, where all volumes share a capacity.
    pub(super) fn reserve(&self, name: String, size: Size) -> Option<Reservation> {
        let pool = self.volume_type().pool()?;
        Some(self.group.reservations.claim(pool, name, size.bytes()))
    }

    /// Refuses a change when LVM's metadata area is nearly full.
    ///
    /// A second copy of the metadata must fit beside the current one, and existing volumes must still be able to get
    /// labels: LVM itself would fill the area to the last byte, and then no volume could be published any more.
    pub(super) fn check_records(now: &GroupMetadata) -> Result<()> {
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
    pub(super) fn handle(&self, id: ImageId) -> Handle {
        Handle {
            node: self.settings.node.clone(),
            class: self.settings.class.clone(),
            key: id.key,
        }
    }

    pub(super) async fn ready(&self) -> Result<()> {
        self.group.check_answers()?;
        self.group.ready(&self.settings.node).await?;
        self.adopt().await?;
        self.volume_type().recover(self).await;
        Ok(())
    }

    /// The device of a volume, if it is active and has a table.
    pub(super) fn device(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
    ) -> Result<Option<Mapped>> {
        let found = self.group.mapper()?.find(&now.mapped_uuid(volume))?;
        Ok(found.filter(|device| device.is_live))
    }
}

/// The volumes that are not parts of others.
pub(super) fn visible(now: &GroupMetadata) -> impl Iterator<Item = &LogicalVolume> {
    // The metadata volumes of a mirror's legs have its tags, and are visible during its creation.
    now.volumes
        .values()
        .filter(|volume| volume.is_visible && !volume.name.contains(NOTES))
}
