//! The mount of a volume on this host: staged, published, moved, taken down.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use drumlin_crd::VolumeMount;
use drumlin_proto::csi::v1;
use tonic::Code;

use super::{Halt, Pass, stalled, waiting};
use crate::{
    blocking::blocking,
    client::{Failure, PATIENCE, call},
};

/// Why nothing is mounted at a path for an object of an API server: who may write objects in a namespace need not be
/// trusted with the paths of this host. A link on the way counts as what it leads to, for tenants write into what is
/// mounted there.
fn denied(path: &Path, roots: &[PathBuf]) -> Option<String> {
    if roots.is_empty() {
        return Some("spec.mount: this agent mounts nothing on its host for objects of an API server; start it with --allow-host-mounts".to_owned());
    }
    let real = |path: &Path| {
        let there = path.ancestors().find_map(|ancestor| {
            let real = fs::canonicalize(ancestor).ok()?;
            Some(real.join(path.strip_prefix(ancestor).ok()?))
        });
        there.unwrap_or_else(|| path.to_owned())
    };
    let path = (path, real(path));
    let is_below = |root: &PathBuf| {
        let root = real(root);
        path.1 != root && path.1.starts_with(&root)
    };
    if roots.iter().any(is_below) {
        return None;
    }
    let roots: Vec<String> = roots
        .iter()
        .map(|root| root.display().to_string())
        .collect();
    Some(format!(
        "spec.mount.path: {} is not below {}, where alone this agent mounts for objects of an API server (--mount-roots)",
        path.0.display(),
        roots.join(" or ")
    ))
}

impl Pass<'_> {
    /// Where the volume is staged.
    pub(super) fn staging(&self) -> PathBuf {
        let name = self.status().csi_name.clone().unwrap_or_default();
        self.shared.state_dir.join("staging").join(name)
    }

    /// Brings the mount to what the manifest wants.
    pub(super) async fn follow_mount(&mut self) -> Result<(), Halt> {
        let wanted = self.spec().mount.clone();
        if let Some(wanted) = &wanted
            && self.record.served().is_some()
        {
            let why = blocking(|| denied(Path::new(&wanted.path), self.shared.mount_roots()));
            why.map_or(Ok(()), |why| Err(stalled("HostMountDenied", why)))?;
        }
        let has = self.record.drumlin.mounted.clone();
        if let Some(has) = &has
            && wanted.as_ref() != Some(has)
        {
            self.unpublish(&has.path).await.map_err(in_use)?;
            // Options belong to the staged file system; a path and read-only belong to the publication.
            if wanted
                .as_ref()
                .is_none_or(|wanted| wanted.options != has.options)
            {
                self.unstage().await.map_err(in_use)?;
            }
            self.record.drumlin.mounted = None;
            self.status_mut().mount_path = None;
            self.save("volume.mount.taken-down")?;
        }
        let Some(wanted) = wanted else {
            return Ok(());
        };
        let is_proven = self.status().mount_path.as_deref() == Some(wanted.path.as_str())
            && self.record.drumlin.boot.as_deref() == Some(self.shared.boot.as_str());
        if is_proven && has.as_ref() == Some(&wanted) && !self.is_doubted {
            return Ok(());
        }
        self.publish(&wanted).await
    }

    async fn publish(&mut self, wanted: &VolumeMount) -> Result<(), Halt> {
        self.record.drumlin.mounted = Some(wanted.clone());
        self.save("volume.mount.intended")?;
        let publish_context = self.attach(wanted).await?;
        let staging = self.staging();
        make_directory(&staging)?;
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
        if let Some(parent) = Path::new(&wanted.path).parent() {
            make_directory(parent)?;
        }
        let request = v1::NodePublishVolumeRequest {
            volume_id: self.handle(),
            publish_context,
            staging_target_path: staging.to_string_lossy().into_owned(),
            target_path: wanted.path.clone(),
            volume_capability: Some(self.capability()),
            readonly: wanted.read_only,
            ..v1::NodePublishVolumeRequest::default()
        };
        let published = call(
            "NodePublishVolume",
            PATIENCE,
            self.client.node().node_publish_volume(request),
        )
        .await;
        self.known(published).await?;
        self.point("volume.publish.called");
        self.record.drumlin.boot = Some(self.shared.boot.clone());
        self.status_mut().mount_path = Some(wanted.path.clone());
        self.save("volume.publish.recorded")
    }

    /// Publishes to this node where the agent wants that.
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
            // Published otherwise before: read-only or not cannot be changed, only taken back and given anew.
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

    /// Unmounts the volume wherever it may be.
    pub(super) async fn take_down(&mut self) -> Result<(), Halt> {
        if let Some(mounted) = self.record.drumlin.mounted.clone() {
            self.unpublish(&mounted.path).await.map_err(in_use)?;
            self.unstage().await.map_err(in_use)?;
            self.record.drumlin.mounted = None;
            self.record.drumlin.boot = None;
            self.status_mut().mount_path = None;
            self.save("volume.taken-down")?;
        }
        Ok(())
    }

    async fn unpublish(&self, path: &str) -> Result<(), Failure> {
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: self.handle(),
            target_path: path.to_owned(),
        };
        gone_is_fine(
            call(
                "NodeUnpublishVolume",
                PATIENCE,
                self.client.node().node_unpublish_volume(request),
            )
            .await,
        )?;
        self.point("volume.unpublish.called");
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
        // Only an empty directory goes: were something still mounted there, it would stay.
        let _ = blocking(|| fs::remove_dir(staging));
        Ok(())
    }
}

/// A volume that is gone has nothing left to be unmounted.
fn gone_is_fine<T>(answer: Result<T, Failure>) -> Result<(), Failure> {
    match answer {
        Err(failure) if failure.code != Code::NotFound => Err(failure),
        _ => Ok(()),
    }
}

/// A mount that somebody uses stays, and is tried again.
fn in_use(failure: Failure) -> Halt {
    if failure.code == Code::FailedPrecondition {
        return waiting(
            "MountPending",
            format!("{}: {}", failure.rpc, failure.message),
        );
    }
    Halt::Failed(failure)
}

fn make_directory(path: &Path) -> Result<(), Halt> {
    match blocking(|| fs::create_dir_all(path)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(waiting(
            "MountPending",
            format!("could not make directory {}: {error}", path.display()),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn objects_of_a_server_are_mounted_below_the_roots_only_whatever_links_say() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("srv/pg")).unwrap();
        symlink(directory.path(), at("srv/pg/out")).unwrap();
        symlink(at("srv"), at("alias")).unwrap();
        let roots = [at("srv")];
        for good in ["srv/new", "srv/pg/data/deep", "alias/new", "srv/pg"] {
            assert_eq!(denied(&at(good), &roots), None, "{good}");
        }
        for bad in ["srv", "srvx", "etc", "srv/pg/out/etc", "alias"] {
            let why = denied(&at(bad), &roots).unwrap();
            assert!(why.starts_with("spec.mount.path: "), "{why}");
        }
        assert_eq!(denied(&at("etc"), &["/".into()]), None);
        assert!(denied(&at("etc"), &[]).is_some());
    }
}
