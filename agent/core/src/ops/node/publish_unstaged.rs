//! Publishing without staging (CSI 0.1, `NodePublishVolume`): the volume is attached, formatted and mounted directly at
//! the target path, and unpublish undoes all of that.

use std::sync::Arc;

use crate::ops::{
    Operations,
    devices::Devices,
    lookup::LocatedImage,
    node_publish::{PublishVolume, Staging, TargetContents, published_otherwise, show},
    stage::StageVolume,
    staging_record::StagingRecord,
    target_path::{self, Target, TargetCleanup, TargetLocation},
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{Access, MountTable},
    types::{AbsolutePath, AccessType, Reference},
};

impl Operations {
    /// Attaches a volume, formats it if it was never formatted, and mounts it at the target path. Idempotent.
    ///
    /// # Errors
    /// `Invalid`, `NotFound`, `Conflict` if published there with other arguments, `Busy`, `Precondition` if it is
    /// staged or published elsewhere.
    pub async fn publish_directly(self: &Arc<Self>, request: PublishVolume) -> Result<()> {
        self.publish(request, Staging::Never).await
    }

    /// Unmounts a volume from a target path, which is kept, and detaches the device after the last mount. Idempotent: a
    /// volume that is not published is no error.
    ///
    /// # Errors
    /// `InUse` while it is open, `Precondition` if something else is mounted there.
    pub async fn unpublish_directly(
        self: &Arc<Self>,
        volume: &Reference,
        target: AbsolutePath,
    ) -> Result<()> {
        self.unpublish(volume, (target.into(), TargetCleanup::Left), Staging::Never)
            .await
    }
}

impl LocatedImage {
    pub(crate) async fn publish_directly(
        &self,
        request: &PublishVolume,
        access: Access,
    ) -> Result<()> {
        let wanted = request.clone();
        let looked = self.look(move |found, seen| {
            let is_published = found.is_published(&wanted, access, seen)?;
            if is_published {
                found.check_options(&wanted, seen)?;
            } else {
                found.check_nowhere_else(seen, None)?;
            }
            Ok(is_published)
        });
        if looked.await? {
            return Ok(());
        }
        match &request.capability.access_type {
            AccessType::Block => self.show_device(request, access).await?,
            AccessType::Mount { .. } => self.mount_at_target(request, access).await?,
        }
        tracing::info!(volume.id = %self.handle, path = %request.target.path, "volume published");
        Ok(())
    }

    /// Refuses a file system that is mounted at the target with other options.
    fn check_options(
        &self,
        request: &PublishVolume,
        (_, table): (&Devices, &MountTable),
    ) -> Result<()> {
        let mount = table.at(&request.target.path);
        let kind = mount.and_then(|mount| mount.fs_type.parse().ok());
        let options = kind.and_then(|kind| request.options(kind));
        let record = options.map(|options| StagingRecord::mounted(&options));
        if record.is_none_or(|record| record == StagingRecord::of(&self.image)) {
            return Ok(());
        }
        Err(published_otherwise(self, &request.target.path))
    }

    async fn mount_at_target(&self, request: &PublishVolume, access: Access) -> Result<()> {
        let target = TargetLocation::of(&request.target.path);
        let made = blocking(move || target_path::make_directory(&target)).await?;
        fail::point("publish-directly.target");
        let stage = StageVolume {
            volume: request.volume.clone(),
            staging: request.target.path.clone(),
            capability: request.capability.clone(),
            publish_context: request.publish_context.clone(),
        };
        let mounted = self.stage_mount(&stage, access).await;
        if mounted.is_err() && made {
            let target = TargetLocation::of(&request.target.path);
            let _ = blocking(move || target_path::remove(&target)).await;
        }
        mounted
    }

    async fn show_device(&self, request: &PublishVolume, access: Access) -> Result<()> {
        self.stage_block(&request.target.path).await?;
        fail::point("publish-directly.attached");
        let device = self.look(|_, (devices, _)| Ok(devices.first().map(ToOwned::to_owned)));
        let device = device.await?.ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!("the block device of volume {} disappeared while it was being published; repeat the call", self.handle),
            )
        })?;
        let target = request.target.clone();
        let shown = blocking(move || show(&device, &target, TargetContents::File, access)).await;
        if shown.is_err() {
            // A device that is in use was attached before for another caller and stays.
            let _ = self.class.backend.detach(self.image.id).await;
        }
        shown
    }
}

impl Operations {
    pub(crate) async fn unpublish_and_detach(
        &self,
        found: &LocatedImage,
        target: Target,
        emptied: TargetCleanup,
    ) -> Result<()> {
        self.unlimit(found).await;
        let ended = found.unpublish_and_detach(target, emptied).await;
        // It may be mounted elsewhere, or still here.
        self.limit_if_possible(found).await;
        ended
    }
}

impl LocatedImage {
    async fn unpublish_and_detach(&self, target: Target, emptied: TargetCleanup) -> Result<()> {
        self.unpublish(target, emptied).await?;
        fail::point("unpublish-directly.unmounted");
        let is_used = self.look(|_, (devices, table)| Ok(devices.mounts(table).next().is_some()));
        if !is_used.await? {
            self.class.backend.detach(self.image.id).await?;
        }
        Ok(())
    }
}
