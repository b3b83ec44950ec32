//! The mount of a volume on this host: staged, published, moved, unpublished.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use drumlin_crd::VolumeMount;
use drumlin_proto::{MOUNT_ROOT_METADATA, csi::v1};
use tonic::{Code, Request, metadata::MetadataValue};

use super::{Confined, Halt, MountPoint, Pass, waiting};
use crate::{
    blocking::blocking,
    client::{Failure, PATIENCE, call, gone_is_fine},
    staging,
};

impl Pass<'_> {
    /// The staging path of the volume.
    pub(super) fn staging(&self) -> PathBuf {
        let name = self.status().csi_name.as_deref().unwrap_or_default();
        staging::directory(&self.shared.state_dir, name, &self.handle())
    }

    /// Reconciles the mount with the manifest.
    pub(super) async fn follow_mount(&mut self) -> Result<(), Halt> {
        let wanted = self.spec().mount.clone();
        let confined = wanted.as_ref().map(|wanted| self.confinement(wanted));
        let confined = confined.transpose()?.flatten();
        if let Some(wanted) = &wanted {
            self.check_path_is_not_held(&wanted.path)?;
        }
        let has = self.record.drumlin.mounted.clone();
        let held = self.record.drumlin.confined.clone();
        // If the restrictions of a mount are unknown, the agent checks them.
        let is_held_otherwise = held.as_ref().is_some_and(|held| {
            let confined = confined.as_ref();
            confined.is_none_or(|confined| confined.options != held.options)
        });
        if let Some(has) = &has
            && (wanted.as_ref() != Some(has) || is_held_otherwise)
        {
            if let Some(wanted) = wanted.as_ref().filter(|wanted| wanted.path != has.path) {
                self.check_path_is_usable(&wanted.path)?;
            }
            self.unpublish(&has.path).await.map_err(in_use)?;
            // Options belong to the staged file system; a path and read-only belong to the publication.
            if is_held_otherwise
                || wanted
                    .as_ref()
                    .is_none_or(|wanted| wanted.options != has.options)
            {
                self.unstage().await.map_err(in_use)?;
            }
            self.forget_mount();
            self.save("volume.mount.taken-down")?;
            self.shared.wake_waiting();
        }
        let Some(wanted) = wanted else {
            return Ok(());
        };
        self.check_path_is_free(&wanted.path)?;
        let is_proven = self.status().mount_path.as_deref() == Some(wanted.path.as_str())
            && self.record.drumlin.boot.as_deref() == Some(self.shared.boot.as_str());
        let is_as_wanted = has.as_ref() == Some(&wanted) && held == confined;
        if is_proven && is_as_wanted && !self.is_doubted {
            return Ok(());
        }
        match self.publish(&wanted, confined.clone()).await {
            // It is mounted without the required restrictions.
            Err(Halt::Failed(failure))
                if failure.code == Code::AlreadyExists && has.is_some() && confined.is_some() =>
            {
                self.take_down().await?;
                self.publish(&wanted, confined).await
            }
            other => other,
        }
    }

    fn forget_mount(&mut self) {
        self.record.drumlin.mounted = None;
        self.record.drumlin.mount_point = None;
        self.record.drumlin.confined = None;
        self.status_mut().mount_path = None;
    }

    async fn publish(
        &mut self,
        wanted: &VolumeMount,
        confined: Option<Confined>,
    ) -> Result<(), Halt> {
        let before = self.record.drumlin.mounted.replace(wanted.clone());
        if before.is_none_or(|before| before.path != wanted.path) {
            self.record.drumlin.mount_point = match confined {
                None => blocking(|| MountPoint::of(Path::new(&wanted.path))),
                // What tenants may write is not made again by its path.
                Some(_) => None,
            };
        }
        self.record.drumlin.confined = confined;
        self.save("volume.mount.intended")?;
        let publish_context = self.attach(wanted).await?;
        let staging = self.staging();
        self.make_directory(&staging)?;
        let request = v1::NodeStageVolumeRequest {
            volume_id: self.handle(),
            publish_context: publish_context.clone(),
            staging_target_path: staging.to_string_lossy().into_owned(),
            volume_capability: Some(self.capability()),
            ..v1::NodeStageVolumeRequest::default()
        };
        let staged = call(
            "NodeStageVolume",
            PATIENCE,
            self.client.node().node_stage_volume(request),
        )
        .await;
        self.known(staged).await?;
        self.point("volume.stage.called");
        // Below a root where tenants may have created symbolic links, the agent creates it, component by component.
        if self.record.drumlin.confined.is_none()
            && let Some(parent) = Path::new(&wanted.path).parent()
        {
            self.make_directory(parent)?;
        }
        let request = v1::NodePublishVolumeRequest {
            volume_id: self.handle(),
            publish_context,
            staging_target_path: staging.to_string_lossy().into_owned(),
            target_path: wanted.path.clone(),
            volume_capability: Some(self.capability()),
            readonly: wanted.read_only,
            volume_context: self.mount_context(),
            ..v1::NodePublishVolumeRequest::default()
        };
        let published = call(
            "NodePublishVolume",
            PATIENCE,
            self.client.node().node_publish_volume(request),
        )
        .await;
        let published = self.judge_denial(published)?;
        self.known(published).await?;
        self.point("volume.publish.called");
        self.record.drumlin.boot = Some(self.shared.boot.clone());
        self.status_mut().mount_path = Some(wanted.path.clone());
        self.save("volume.publish.recorded")
    }

    /// Publishes to this node with `ControllerPublishVolume`, if the agent requires that.
    async fn attach(
        &mut self,
        wanted: &VolumeMount,
    ) -> Result<std::collections::BTreeMap<String, String>, Halt> {
        if !self.agent.attach {
            return Ok(std::collections::BTreeMap::new());
        }
        let request = |pass: &Self| v1::ControllerPublishVolumeRequest {
            volume_id: pass.handle(),
            node_id: pass.agent.node.clone(),
            volume_capability: Some(pass.capability()),
            readonly: wanted.read_only,
            ..v1::ControllerPublishVolumeRequest::default()
        };
        let mut controller = self.client.controller();
        let answer = call(
            "ControllerPublishVolume",
            PATIENCE,
            controller.controller_publish_volume(request(self)),
        )
        .await;
        let answer = match answer {
            // Published with another access before: read-only cannot be changed, only unpublished and published again.
            Err(failure) if failure.code == Code::AlreadyExists => {
                self.unstage().await.map_err(in_use)?;
                call(
                    "ControllerPublishVolume",
                    PATIENCE,
                    controller.controller_publish_volume(request(self)),
                )
                .await
            }
            other => other,
        };
        let answer = self.known(answer).await?;
        self.point("volume.attach.called");
        Ok(answer.publish_context)
    }

    /// Unmounts the volume everywhere.
    pub(super) async fn take_down(&mut self) -> Result<(), Halt> {
        if let Some(mounted) = self.record.drumlin.mounted.clone() {
            self.unpublish(&mounted.path).await.map_err(in_use)?;
            self.unstage().await.map_err(in_use)?;
            self.forget_mount();
            self.record.drumlin.boot = None;
            self.save("volume.taken-down")?;
            self.shared.wake_waiting();
        }
        Ok(())
    }

    async fn unpublish(&self, path: &str) -> Result<(), Failure> {
        let mut request = Request::new(v1::NodeUnpublishVolumeRequest {
            volume_id: self.handle(),
            target_path: path.to_owned(),
        });
        if let Some(root) = self.mounted_below(path) {
            let root = MetadataValue::from_bytes(root.as_bytes());
            request.metadata_mut().insert_bin(MOUNT_ROOT_METADATA, root);
        }
        gone_is_fine(
            call(
                "NodeUnpublishVolume",
                PATIENCE,
                self.client.node().node_unpublish_volume(request),
            )
            .await,
        )?;
        self.point("volume.unpublish.called");
        if let Some(mount_point) = &self.record.drumlin.mount_point
            && !self.shared.is_dry_run()
        {
            blocking(|| mount_point.put_back(Path::new(path)));
        }
        Ok(())
    }

    async fn unstage(&self) -> Result<(), Failure> {
        let staging = self.staging();
        let request = v1::NodeUnstageVolumeRequest {
            volume_id: self.handle(),
            staging_target_path: staging.to_string_lossy().into_owned(),
        };
        gone_is_fine(
            call(
                "NodeUnstageVolume",
                PATIENCE,
                self.client.node().node_unstage_volume(request),
            )
            .await,
        )?;
        self.point("volume.unstage.called");
        if self.agent.attach {
            let request = v1::ControllerUnpublishVolumeRequest {
                volume_id: self.handle(),
                node_id: self.agent.node.clone(),
                ..v1::ControllerUnpublishVolumeRequest::default()
            };
            let mut controller = self.client.controller();
            gone_is_fine(
                call(
                    "ControllerUnpublishVolume",
                    PATIENCE,
                    controller.controller_unpublish_volume(request),
                )
                .await,
            )?;
        }
        // Removes only an empty directory: a mounted one stays.
        if !self.shared.is_dry_run() {
            let _ = blocking(|| fs::remove_dir(staging));
        }
        Ok(())
    }

    fn make_directory(&self, path: &Path) -> Result<(), Halt> {
        if self.shared.is_dry_run() {
            return Ok(());
        }
        match blocking(|| fs::create_dir_all(path)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(waiting(
                "MountPending",
                format!("could not create directory {}: {error}", path.display()),
            )),
            _ => Ok(()),
        }
    }
}

/// A mount in use stays, and the unmount is retried.
fn in_use(failure: Failure) -> Halt {
    if failure.code == Code::FailedPrecondition {
        return waiting(
            "MountPending",
            format!("{}: {}", failure.rpc, failure.message),
        );
    }
    Halt::Failed(failure)
}
