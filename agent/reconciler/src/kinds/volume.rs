//! Kind `Volume`: made, grown, mounted, moved, unmounted, released or deleted.

use drumlin_crd::{DeletionPolicy, FsType, Quantity, VolumeMode, VolumeSpec, VolumeStatus, names};
use drumlin_proto::csi::v1::{
    self,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
    volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource},
};
use tonic::Code;

use super::{Halt, Pass, ready, stalled, waiting};
use crate::{
    client::{Failure, LONG, SHORT, call},
    record::{Body, CreateIntent, Record, State, Verdict},
};

impl Pass<'_> {
    /// Brings a volume to what its manifest wants.
    pub(crate) async fn volume(&mut self) -> Result<Verdict, Halt> {
        if self.record.is_absent() {
            return self.destroy_volume().await;
        }
        self.record.drumlin.destroyed = false;
        self.check_lost()?;
        if self.status().volume_handle.is_none() {
            self.create_volume().await?;
        }
        self.grow_volume().await?;
        self.follow_mount().await?;
        self.grow_file_system().await?;
        let status = self.status();
        let size = status.capacity.clone().unwrap_or(Quantity::from_bytes(0));
        Ok(match &status.mount_path {
            Some(path) => ready("Published", format!("{size} at {path}")),
            None => ready("Created", format!("{size}, not mounted")),
        })
    }

    pub(super) fn spec(&self) -> &VolumeSpec {
        volume_parts(&self.record).0
    }

    pub(super) fn status(&self) -> &VolumeStatus {
        volume_parts(&self.record).1
    }

    pub(super) fn status_mut(&mut self) -> &mut VolumeStatus {
        match &mut self.record.body {
            Body::Volume { status, .. } => status,
            Body::Snapshot { .. } => unreachable!("a volume's pass has a volume's record"),
        }
    }

    /// The id by which the agent knows the volume.
    pub(super) fn handle(&self) -> String {
        self.status().volume_handle.clone().unwrap_or_default()
    }

    /// How the volume is used.
    pub(super) fn capability(&self) -> v1::VolumeCapability {
        let spec = self.spec();
        let access_type = match spec.volume_mode {
            VolumeMode::Block => AccessType::Block(BlockVolume {}),
            VolumeMode::Filesystem => AccessType::Mount(MountVolume {
                fs_type: FsType::as_str(spec.fs_type).to_owned(),
                mount_flags: spec
                    .mount
                    .as_ref()
                    .map(|mount| mount.options.clone())
                    .unwrap_or_default(),
                volume_mount_group: String::new(),
            }),
        };
        v1::VolumeCapability {
            access_type: Some(access_type),
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
        }
    }

    /// A volume that was there and is gone is never replaced by an empty one, until a person says so.
    fn check_lost(&mut self) -> Result<(), Halt> {
        if !self.record.drumlin.lost {
            return Ok(());
        }
        let handle = self.handle();
        if self.record.annotation(names::RECREATE) != Some(handle.as_str()) {
            return Err(stalled(
                "VolumeLost",
                format!(
                    "volume {handle} was there and is gone; bring it back, or have an empty one made with the annotation {}: {handle}",
                    names::RECREATE
                ),
            ));
        }
        self.forget_volume();
        self.save("volume.recreate")
    }

    fn forget_volume(&mut self) {
        let name = self.status().csi_name.clone();
        *self.status_mut() = VolumeStatus {
            csi_name: name,
            ..VolumeStatus::default()
        };
        let book = &mut self.record.drumlin;
        book.lost = false;
        book.create = None;
        book.mounted = None;
        book.grow_file_system = false;
    }

    async fn create_volume(&mut self) -> Result<(), Halt> {
        let key = self.record.key();
        let name = names::csi_name("lv", &key.kind, (&key.namespace, &key.name), None);
        if self.record.drumlin.create.is_none() {
            let intent = self.intend()?;
            self.record.drumlin.create = Some(intent);
            self.status_mut().csi_name = Some(name.clone());
            self.save("volume.create.intended")?;
        }
        let Some(intent) = self.record.drumlin.create.clone() else {
            return Ok(());
        };
        let source = intent
            .snapshot
            .map(|snapshot_id| SourceType::Snapshot(SnapshotSource { snapshot_id }))
            .or_else(|| {
                intent
                    .volume
                    .map(|volume_id| SourceType::Volume(VolumeSource { volume_id }))
            });
        let topology = self.agent.topology.clone();
        let request = v1::CreateVolumeRequest {
            name,
            capacity_range: Some(v1::CapacityRange {
                required_bytes: i64::try_from(intent.bytes).unwrap_or(i64::MAX),
                limit_bytes: 0,
            }),
            volume_capabilities: vec![self.capability()],
            parameters: intent.parameters,
            volume_content_source: source.map(|source| v1::VolumeContentSource {
                r#type: Some(source),
            }),
            accessibility_requirements: topology.map(|topology| v1::TopologyRequirement {
                requisite: vec![topology.clone()],
                preferred: vec![topology],
            }),
            ..v1::CreateVolumeRequest::default()
        };
        let answer = call(
            "CreateVolume",
            LONG,
            self.client.controller().create_volume(request),
        )
        .await?;
        self.point("volume.create.called");
        let Some(volume) = answer.volume else {
            return Err(stalled(
                "InvalidAnswer",
                "CreateVolume answered without a volume".to_owned(),
            ));
        };
        let status = self.status_mut();
        status.volume_handle = Some(volume.volume_id);
        status.capacity = Some(Quantity::from_bytes(
            volume.capacity_bytes.max(0).unsigned_abs(),
        ));
        self.save("volume.create.recorded")
    }

    /// What the volume shall be made with, this time and every time.
    fn intend(&self) -> Result<CreateIntent, Halt> {
        let spec = self.spec();
        let bytes = spec.capacity.bytes().unwrap_or(0);
        let mut parameters = spec.parameters.clone();
        parameters.extend(self.owner());
        parameters.insert("class".to_owned(), spec.device_class.clone());
        let mut intent = CreateIntent {
            bytes,
            snapshot: None,
            volume: None,
            parameters,
        };
        let Some(source) = &spec.source else {
            return Ok(intent);
        };
        if source.group_snapshot.is_some() {
            return Err(stalled(
                "Unsupported",
                "spec.source.groupSnapshot: group snapshots are not there yet".to_owned(),
            ));
        }
        if let Some(name) = &source.snapshot_name {
            let (handle, size) = self.ready_snapshot(name)?;
            if bytes < size {
                return Err(stalled(
                    "InvalidArgument",
                    format!(
                        "spec.capacity: {} is smaller than snapshot {name}, which needs {}",
                        spec.capacity,
                        Quantity::from_bytes(size)
                    ),
                ));
            }
            intent.snapshot = Some(handle);
        }
        if let Some(name) = &source.volume_name {
            intent.volume = Some(self.ready_volume(name)?);
        }
        Ok(intent)
    }

    /// The handle of another volume, once it is ready.
    pub(super) fn ready_volume(&self, name: &str) -> Result<String, Halt> {
        let missing = |what: &str| {
            waiting(
                "DependencyNotFound",
                format!("waits for volume {name}, which {what}"),
            )
        };
        let volume = self
            .sibling("Volume", name)
            .ok_or_else(|| missing("is not there"))?;
        if !volume.is_ready() {
            return Err(missing("is not ready"));
        }
        match &volume.body {
            Body::Volume { status, .. } => status
                .volume_handle
                .clone()
                .ok_or_else(|| missing("is not there")),
            Body::Snapshot { .. } => Err(missing("is not there")),
        }
    }

    fn ready_snapshot(&self, name: &str) -> Result<(String, u64), Halt> {
        let missing = |what: &str| {
            waiting(
                "DependencyNotFound",
                format!("waits for snapshot {name}, which {what}"),
            )
        };
        let snapshot = self
            .sibling("Snapshot", name)
            .ok_or_else(|| missing("is not there"))?;
        match &snapshot.body {
            Body::Snapshot { status, .. } if status.ready_to_use => {
                let size = status
                    .restore_size
                    .as_ref()
                    .and_then(|size| size.bytes().ok());
                let handle = status
                    .snapshot_handle
                    .clone()
                    .ok_or_else(|| missing("is not there"))?;
                Ok((handle, size.unwrap_or(0)))
            }
            _ => Err(missing("is not ready")),
        }
    }

    async fn grow_volume(&mut self) -> Result<(), Halt> {
        let wanted = self.spec().capacity.bytes().unwrap_or(0);
        let has = self
            .status()
            .capacity
            .as_ref()
            .and_then(|capacity| capacity.bytes().ok());
        // Sizes round up, so more than wanted is as wanted.
        if has.is_some_and(|has| has >= wanted) {
            return Ok(());
        }
        let request = v1::ControllerExpandVolumeRequest {
            volume_id: self.handle(),
            capacity_range: Some(v1::CapacityRange {
                required_bytes: i64::try_from(wanted).unwrap_or(i64::MAX),
                limit_bytes: 0,
            }),
            volume_capability: Some(self.capability()),
            ..v1::ControllerExpandVolumeRequest::default()
        };
        let mut controller = self.client.controller();
        let answer = call(
            "ControllerExpandVolume",
            LONG,
            controller.controller_expand_volume(request),
        )
        .await;
        let answer = self.known(answer).await?;
        self.point("volume.expand.called");
        self.record.drumlin.grow_file_system = answer.node_expansion_required;
        self.status_mut().capacity = Some(Quantity::from_bytes(
            answer.capacity_bytes.max(0).unsigned_abs(),
        ));
        self.save("volume.expand.recorded")
    }

    /// The file system of a mounted volume follows; that of another does when it is staged.
    async fn grow_file_system(&mut self) -> Result<(), Halt> {
        if !self.record.drumlin.grow_file_system {
            return Ok(());
        }
        if let Some(path) = self.status().mount_path.clone() {
            let request = v1::NodeExpandVolumeRequest {
                volume_id: self.handle(),
                volume_path: path,
                staging_target_path: self.staging().to_string_lossy().into_owned(),
                volume_capability: Some(self.capability()),
                ..v1::NodeExpandVolumeRequest::default()
            };
            let grown = call(
                "NodeExpandVolume",
                LONG,
                self.client.node().node_expand_volume(request),
            )
            .await;
            self.known(grown).await?;
            self.point("volume.node-expand.called");
        }
        self.record.drumlin.grow_file_system = false;
        self.save("volume.node-expand.recorded")
    }

    /// The answer about a volume that was there. `NOT_FOUND` may mean that it is not where it should be mounted;
    /// only when the controller does not know it either, it is lost.
    pub(super) async fn known<T>(&mut self, answer: Result<T, Failure>) -> Result<T, Halt> {
        let failure = match answer {
            Ok(answer) => return Ok(answer),
            Err(failure) if failure.code == Code::NotFound => failure,
            Err(failure) => return Err(failure.into()),
        };
        let request = v1::ControllerGetVolumeRequest {
            volume_id: self.handle(),
        };
        let mut controller = self.client.controller();
        match call(
            "ControllerGetVolume",
            SHORT,
            controller.controller_get_volume(request),
        )
        .await
        {
            Err(second) if second.code == Code::NotFound => {
                self.record.drumlin.lost = true;
                self.save("volume.lost")?;
                self.check_lost()?;
            }
            _ => self.shared.doubt_mount(&self.record.key()),
        }
        Err(failure.into())
    }

    /// Takes the volume away, and then deletes or releases it.
    async fn destroy_volume(&mut self) -> Result<Verdict, Halt> {
        if !self.record.drumlin.destroyed {
            // A create whose outcome is not known is brought to an end first, or what it made would be left.
            if self.record.drumlin.create.is_some() && self.status().volume_handle.is_none() {
                self.create_volume().await?;
            }
            if self.status().volume_handle.is_some() {
                self.take_down().await?;
                match self.spec().deletion_policy {
                    DeletionPolicy::Delete => self.delete_volume().await?,
                    DeletionPolicy::Retain => self.release_volume().await?,
                }
            }
            self.record.drumlin.destroyed = true;
            self.save("volume.destroyed")?;
        }
        let (reason, message) = match self.spec().deletion_policy {
            DeletionPolicy::Delete => {
                ("Deleted", "deleted; its manifest can be removed".to_owned())
            }
            DeletionPolicy::Retain => (
                "Released",
                format!("unmounted; volume {} is kept", self.handle()),
            ),
        };
        Ok(Verdict {
            state: State::Gone,
            reason,
            message,
        })
    }

    async fn delete_volume(&mut self) -> Result<(), Halt> {
        let request = v1::DeleteVolumeRequest {
            volume_id: self.handle(),
            ..v1::DeleteVolumeRequest::default()
        };
        match call(
            "DeleteVolume",
            LONG,
            self.client.controller().delete_volume(request),
        )
        .await
        {
            Err(failure) if failure.code != Code::NotFound => return Err(failure.into()),
            _ => self.point("volume.delete.called"),
        }
        self.forget_volume();
        Ok(())
    }

    async fn release_volume(&mut self) -> Result<(), Halt> {
        let request = v1::ControllerModifyVolumeRequest {
            volume_id: self.handle(),
            mutable_parameters: [("label.released".to_owned(), "true".to_owned())].into(),
            ..v1::ControllerModifyVolumeRequest::default()
        };
        let mut controller = self.client.controller();
        match call(
            "ControllerModifyVolume",
            SHORT,
            controller.controller_modify_volume(request),
        )
        .await
        {
            Err(failure) if failure.code != Code::NotFound => Err(failure.into()),
            _ => Ok(()),
        }
    }
}

/// Spec and status of a volume's record.
fn volume_parts(record: &Record) -> (&VolumeSpec, &VolumeStatus) {
    match &record.body {
        Body::Volume { spec, status } => (spec, status),
        Body::Snapshot { .. } => unreachable!("a volume's pass has a volume's record"),
    }
}
