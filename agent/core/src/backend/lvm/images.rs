//! The images of a class, as the operations of all back ends use them.

use std::path::PathBuf;

use async_trait::async_trait;
use drumlin_lvm::merges::check_no_merge;

use super::{
    Lvm,
    devices::node,
    tags::{self, Tags},
};
use crate::{
    Error, Kind, Result,
    backend::{
        AttachedDevice, Backend, Capacity, Change, ChangedBlocks, ChangedQuery, Checks, Family,
        Fault, Features, Health, Image, ImageSpec, Jobs, LabelChange, Labels, RangeSink, Reason,
        Running, Snapshots, StorageKind, Utilization,
    },
    host::{Access, quiesce::QuiescePlan},
    types::{ImageId, ImageKind, Size},
};

#[async_trait]
impl Backend for Lvm {
    fn family(&self) -> Family {
        Family::Lvm
    }

    fn kind(&self) -> StorageKind {
        self.volume_type().kind()
    }

    async fn features(&self) -> Result<Features> {
        let extent_size = self.group.extent_size().await?;
        Ok(Features {
            sizes: self.sizes(extent_size)?,
            file_system: self.settings.file_system,
            keeps_devices: true,
            // A thick volume keeps discarded extents, but its disk can use the discard for wear levelling.
            takes_back: true,
        })
    }

    async fn recover(&self) -> Result<()> {
        self.ready().await
    }

    async fn capacity(&self) -> Result<Capacity> {
        let now = self.group.now().await?;
        self.volume_type().capacity(self, &now).await
    }

    async fn utilization(&self) -> Result<Utilization> {
        let now = self.group.now().await?;
        let complete = |kind| {
            let all = self.ours(&now);
            all.filter(move |ours| ours.tags.id.kind == kind && !ours.tags.is_incomplete)
        };
        let trash = complete(ImageKind::Trash);
        Ok(Utilization {
            space: self.volume_type().space(self, &now).await?,
            capacity: self.volume_type().capacity(self, &now).await?,
            volumes: u64::try_from(complete(ImageKind::Volume).count()).unwrap_or(u64::MAX),
            trash: trash.map(|ours| ours.bytes(&now)).collect(),
        })
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
            .map(|ours| Ok(endangered(self.image(&now, &ours)?, danger.as_ref())))
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
        Ok(Some(endangered(image, danger.as_ref())))
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
        let found = self.complete_volume(&now, id)?;
        let before = self.image(&now, &found)?;
        let Some(labels) = change.apply(&before.labels) else {
            return Ok(Change::Already(before));
        };
        let tags = |labels: &Labels| -> Vec<String> {
            labels
                .iter()
                .map(|(key, value)| tags::label(key, value))
                .collect()
        };
        let (old, new) = (tags(&before.labels), tags(&labels));
        let command = tags::changed(&old, &new).words([self.group.path(&found.volume.name)]);
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
        Ok(Change::Made(
            self.image(&now, &self.complete_volume(&now, id)?)?,
        ))
    }

    async fn rename(
        &self,
        from: ImageId,
        to: ImageId,
        change: &LabelChange,
    ) -> Result<Change<Image>> {
        self.ready().await?;
        self.rename_image(from, to, change).await
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

    async fn attach(&self, id: ImageId, _: Access) -> Result<AttachedDevice> {
        self.ready().await?;
        let now = self.group.now().await?;
        let found = self.complete_volume(&now, id)?;
        if let Health::Damaged(fault) = self.image(&now, &found)?.health {
            return Err(Error::new(
                Kind::Precondition,
                format!("{id} cannot be used: {}", fault.message),
            ));
        }
        self.activate(&now, found.volume).await.map(Into::into)
    }

    async fn devices(&self, id: ImageId) -> Result<Vec<PathBuf>> {
        let now = self.group.now().await?;
        let found = self.complete_volume(&now, id)?;
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

#[async_trait]
impl ChangedBlocks for Lvm {
    async fn changed(&self, query: ChangedQuery, sink: Box<dyn RangeSink>) -> Result<()> {
        self.ready().await?;
        self.volume_type().changed(self, query, sink).await
    }
}

#[async_trait]
impl Checks for Lvm {
    async fn check(&self) -> Result<()> {
        let now = self.group.now().await?;
        self.volume_type().check(self, &now).await
    }

    fn known_silence(&self) -> Option<Error> {
        self.group.known_silence()
    }

    async fn faults(&self) -> Vec<Fault> {
        let now = match self.group.now().await {
            Ok(now) => now,
            Err(error) => return vec![Fault::new(Reason::ClassUnavailable, error.chain())],
        };
        let missing: Vec<&str> = now
            .disks
            .iter()
            .filter(|(_, disk)| disk.is_missing)
            .map(|(name, _)| name.as_str())
            .collect();
        let missing = (!missing.is_empty()).then(|| {
            Fault::new(
                Reason::DiskMissing,
                format!(
                    "volume group {} lacks its disks {}; see pvs -o +missing",
                    now.name,
                    missing.join(", ")
                ),
            )
        });
        let faults = self.volume_type().faults(self, &now).await;
        missing.into_iter().chain(faults).collect()
    }

    async fn check_deletable(&self, id: ImageId) -> Result<()> {
        self.ready().await?;
        let now = self.group.now().await?;
        let Some(found) = self.find(&now, id) else {
            return Ok(());
        };
        check_no_merge(&now, found.volume)?;
        self.check_idle(&now, found.volume).await?;
        self.volume_type().check_removable(self, &now, &found)
    }

    async fn check_unbound(&self, id: ImageId) -> Result<()> {
        let now = self.group.now().await?;
        match self.find(&now, id) {
            Some(found) => {
                let volume_type = self.volume_type();
                volume_type.check_unbound(self, &now, &found).await
            }
            None => Ok(()),
        }
    }

    async fn usage(&self, id: ImageId) -> Result<Option<u64>> {
        let now = self.group.now().await?;
        let found = self.complete_volume(&now, id)?;
        self.volume_type().usage(self, &now, &found).await
    }

    async fn room_by_deleting(
        &self,
        needed: Size,
        oldest_first: &[ImageId],
    ) -> Result<Vec<ImageId>> {
        let now = self.group.now().await?;
        let volumes = oldest_first.iter().filter_map(|id| self.find(&now, *id));
        let volumes: Vec<super::OwnVolume<'_>> = volumes.collect();
        let volume_type = self.volume_type();
        volume_type
            .room_by_deleting(self, &now, needed.bytes(), &volumes)
            .await
    }
}

#[async_trait]
impl Snapshots for Lvm {
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
}

impl Jobs for Lvm {
    fn running(&self) -> &Running {
        &self.running
    }
}

/// Marks a volume in a full pool as degraded: it is usable, but its writes may fail. A snapshot is not written to.
fn endangered(image: Image, danger: Option<&Fault>) -> Image {
    match danger {
        Some(fault) if image.id.kind == ImageKind::Volume && image.health == Health::Good => {
            Image {
                health: Health::Degraded(fault.clone()),
                ..image
            }
        }
        _ => image,
    }
}
