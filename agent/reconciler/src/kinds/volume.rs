//! Kind `Volume`: created, expanded, mounted, moved, unmounted, released or deleted.

use drumlin_crd::{FsType, Quantity, VolumeMode, VolumeSpec, VolumeStatus, names};
use drumlin_proto::csi::v1::{
    self,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
    volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource},
};
use tonic::Code;

use super::{Halt, Pass, ready, stalled};
use crate::{
    client::{Client, Failure, PATIENCE, call},
    inventory::size,
    record::{Body, CreateIntent, Of, Record, Verdict},
};

impl Pass<'_> {
    /// Reconciles a volume with its manifest.
    pub(crate) async fn volume(&mut self) -> Result<Verdict, Halt> {
        if self.record.is_absent() {
            return self.destroy_volume().await;
        }
        self.record.drumlin.destroyed = false;
        // Also after an intended create: its class may have been unavailable then.
        if self.status().volume_handle.is_none() {
            self.take_up().await?;
        }
        if self.is_doubted && self.status().volume_handle.is_some() {
            self.look_again().await?;
        }
        self.check_lost()?;
        if self.status().volume_handle.is_none() {
            self.create_volume().await?;
        }
        self.check_kept().await?;
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
            Body::Volume(Of { status, .. }) => status,
            _ => unreachable!("a volume's pass has a volume's record"),
        }
    }

    /// The handle of the volume.
    pub(super) fn handle(&self) -> String {
        self.status().volume_handle.clone().unwrap_or_default()
    }

    /// The volume capability of its calls.
    pub(super) fn capability(&self) -> v1::VolumeCapability {
        let confined = self.record.drumlin.confined.iter();
        // The last one of conflicting options takes effect.
        let confined = confined.flat_map(|confined| confined.options.iter().cloned());
        let mount_flags = self.mount_flags().into_iter().chain(confined).collect();
        self.capability_with(self.spec().fs_type, mount_flags)
    }

    pub(super) fn mount_flags(&self) -> Vec<String> {
        let mount = self.spec().mount.as_ref();
        mount.map(|mount| mount.options.clone()).unwrap_or_default()
    }

    fn capability_with(
        &self,
        fs_type: Option<FsType>,
        mount_flags: Vec<String>,
    ) -> v1::VolumeCapability {
        let access_type = match self.spec().volume_mode {
            VolumeMode::Block => AccessType::Block(BlockVolume {}),
            VolumeMode::Filesystem => AccessType::Mount(MountVolume {
                // Empty means the file system of the source, or of the class.
                fs_type: fs_type.map_or("", FsType::as_str).to_owned(),
                mount_flags,
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

    /// A lost volume is never replaced by an empty one, unless a person requests it.
    fn check_lost(&mut self) -> Result<(), Halt> {
        if !self.record.drumlin.lost {
            return Ok(());
        }
        let handle = self.handle();
        if self.record.annotation(names::RECREATE) != Some(handle.as_str()) {
            return Err(stalled(
                "VolumeLost",
                format!(
                    "volume {handle} was created and no longer exists; restore its disk, or create an empty volume in its place with the annotation {}: {handle}",
                    names::RECREATE
                ),
            ));
        }
        self.forget_volume();
        self.save("volume.recreate")
    }

    pub(super) fn forget_volume(&mut self) {
        let name = self.status().csi_name.clone();
        *self.status_mut() = VolumeStatus {
            csi_name: name,
            ..VolumeStatus::default()
        };
        let book = &mut self.record.drumlin;
        book.lost = false;
        book.create = None;
        book.mounted = None;
        book.mount_point = None;
        book.confined = None;
        book.boot = None;
        book.grow_file_system = false;
    }

    pub(super) async fn create_volume(&mut self) -> Result<(), Halt> {
        let key = self.record.key();
        let name = names::csi_name("lv", &key.kind, (&key.namespace, &key.name), None);
        let intent = if let Some(intent) = self.record.drumlin.create.clone() {
            intent
        } else {
            let intent = self.intend()?;
            self.check_class().await?;
            self.add_finalizer().await?;
            self.record.drumlin.create = Some(intent.clone());
            self.status_mut().csi_name = Some(name.clone());
            let is_copy = intent.snapshot.is_some() || intent.volume.is_some();
            if is_copy {
                // A copy that an edited manifest finds half-made would not be of the size that it has.
                self.save("volume.create.intended")?;
            } else {
                self.remember_intent("volume.create.intended").await?;
            }
            intent
        };
        let request = self.create_request(name, intent);
        let answer = call(
            "CreateVolume",
            PATIENCE,
            self.client.controller().create_volume(request),
        )
        .await;
        if let Err(failure) = &answer
            && is_refusal(failure.code)
        {
            // Nothing was created, so the next attempt may use the then current manifest.
            self.record.drumlin.create = None;
        }
        let answer = answer?;
        self.point("volume.create.called");
        let Some(volume) = answer.volume else {
            return Err(stalled(
                "InvalidAnswer",
                "CreateVolume returned no volume".to_owned(),
            ));
        };
        let status = self.status_mut();
        status.volume_handle = Some(volume.volume_id);
        status.capacity = Some(size(volume.capacity_bytes));
        // No attempt follows.
        self.record.drumlin.create = None;
        self.record.is_found();
        self.remember("volume.create.recorded")
    }

    fn create_request(&self, name: String, intent: CreateIntent) -> v1::CreateVolumeRequest {
        let snapshot = |snapshot_id| SourceType::Snapshot(SnapshotSource { snapshot_id });
        let volume = |volume_id| SourceType::Volume(VolumeSource { volume_id });
        let source = intent.snapshot.map(snapshot).or(intent.volume.map(volume));
        let topology = self.agent.topology.clone();
        v1::CreateVolumeRequest {
            name,
            capacity_range: Some(v1::CapacityRange {
                required_bytes: i64::try_from(intent.bytes).unwrap_or(i64::MAX),
                limit_bytes: 0,
            }),
            volume_capabilities: vec![self.capability_with(intent.fs_type, intent.mount_flags)],
            parameters: intent.parameters,
            volume_content_source: source.map(|source| v1::VolumeContentSource {
                r#type: Some(source),
            }),
            accessibility_requirements: topology.map(|topology| v1::TopologyRequirement {
                requisite: vec![topology.clone()],
                preferred: vec![topology],
            }),
            ..v1::CreateVolumeRequest::default()
        }
    }

    /// A field that was not set at creation may be set later, but only to the value that the agent has chosen. Also checks
    /// the mount options, before a mount is taken down for them.
    async fn check_kept(&mut self) -> Result<(), Halt> {
        let class = names::class_of(&self.handle()).map(str::to_owned);
        self.status_mut().device_class.clone_from(&class);
        let wanted = &self.spec().device_class;
        if wanted.is_some() && *wanted != class {
            return Err(stalled(
                "InvalidArgument",
                format!(
                    "spec.deviceClass: cannot be changed; the volume is in class {}",
                    class.unwrap_or_default()
                ),
            ));
        }
        let seen = self.status().observed_generation;
        let is_observed = seen > 0 && self.record.metadata.generation == Some(seen);
        let is_checked = is_observed && self.record.is_ready();
        let says_nothing = self.spec().fs_type.is_none() && self.mount_flags().is_empty();
        if says_nothing || is_checked || seen <= 0 {
            return Ok(());
        }
        let request = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: self.handle(),
            volume_capabilities: vec![self.capability()],
            ..v1::ValidateVolumeCapabilitiesRequest::default()
        };
        let mut controller = self.client.controller();
        let answer = controller.validate_volume_capabilities(request);
        let answer = call("ValidateVolumeCapabilities", PATIENCE, answer).await;
        match self.known(answer).await? {
            answer if answer.confirmed.is_some() => Ok(()),
            answer => {
                let (field, why) = match answer.message.split_once("mount_flags: ") {
                    Some((_, why)) => ("spec.mount.options", why),
                    None => ("spec.fsType", answer.message.as_str()),
                };
                Err(stalled("InvalidArgument", format!("{field}: {why}")))
            }
        }
    }

    async fn grow_volume(&mut self) -> Result<(), Halt> {
        let wanted = self.spec().capacity.bytes().unwrap_or(0);
        let has = self
            .status()
            .capacity
            .as_ref()
            .and_then(|capacity| capacity.bytes().ok());
        // Sizes are rounded up, so a larger volume is as wanted.
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
            PATIENCE,
            controller.controller_expand_volume(request),
        )
        .await;
        let answer = self.known(answer).await?;
        self.point("volume.expand.called");
        self.record.drumlin.grow_file_system = answer.node_expansion_required;
        self.status_mut().capacity = Some(size(answer.capacity_bytes));
        self.save("volume.expand.recorded")
    }

    /// Grows the file system of a mounted volume; otherwise it is grown when the volume is staged.
    async fn grow_file_system(&mut self) -> Result<(), Halt> {
        if !self.record.drumlin.grow_file_system {
            return Ok(());
        }
        if let Some(path) = self.status().mount_path.clone() {
            // A path that tenants may change is not used to find the mount.
            let path = match &self.record.drumlin.confined {
                Some(_) => self.staging().to_string_lossy().into_owned(),
                None => path,
            };
            let request = v1::NodeExpandVolumeRequest {
                volume_id: self.handle(),
                volume_path: path,
                staging_target_path: self.staging().to_string_lossy().into_owned(),
                volume_capability: Some(self.capability()),
                ..v1::NodeExpandVolumeRequest::default()
            };
            let grown = call(
                "NodeExpandVolume",
                PATIENCE,
                self.client.node().node_expand_volume(request),
            )
            .await;
            self.known(grown).await?;
            self.point("volume.node-expand.called");
        }
        self.record.drumlin.grow_file_system = false;
        self.save("volume.node-expand.recorded")
    }

    /// Checks the answer about an existing volume. `NOT_FOUND` may mean that it is not mounted where expected; it is
    /// lost only if the controller does not know it either.
    pub(super) async fn known<T>(&mut self, answer: Result<T, Failure>) -> Result<T, Halt> {
        let failure = match answer {
            Ok(answer) => return Ok(answer),
            Err(failure) if failure.code == Code::NotFound => failure,
            Err(failure) => return Err(failure.into()),
        };
        self.look_again().await?;
        self.check_lost()?;
        Err(failure.into())
    }

    /// Checks that the volume still exists, and reads its size.
    async fn look_again(&mut self) -> Result<(), Halt> {
        let request = v1::ControllerGetVolumeRequest {
            volume_id: self.handle(),
        };
        let mut controller = self.client.controller();
        let answer = call(
            "ControllerGetVolume",
            PATIENCE,
            controller.controller_get_volume(request),
        )
        .await;
        let was_lost = self.record.drumlin.lost;
        match answer {
            Err(failure) if failure.code == Code::NotFound => self.record.drumlin.lost = true,
            // A driver without this call does not show that the volume is lost.
            Err(failure) if failure.code == Code::Unimplemented => {}
            Err(failure) => return Err(failure.into()),
            Ok(answer) => {
                self.record.drumlin.lost = false;
                if let Some(volume) = answer.volume {
                    self.status_mut().capacity = Some(size(volume.capacity_bytes));
                }
                let condition = answer.status.and_then(|status| status.volume_condition);
                let problem = condition.and_then(abnormal);
                let of_mount = self.mount_problem().await;
                self.record.drift(of_mount.or(problem));
                self.is_doubted = true;
            }
        }
        if self.record.drumlin.lost && !was_lost {
            self.save("volume.lost")?;
        }
        Ok(())
    }
}

impl Pass<'_> {
    /// What is wrong with the volume where it is mounted: what is wrong with its file system, too.
    async fn mount_problem(&self) -> Option<String> {
        let path = self.status().mount_path.clone()?;
        let stats = stats_at(self.client, &self.handle(), &path).await;
        abnormal(stats.ok()?.volume_condition?)
    }
}

/// The statistics of a volume where it is mounted, and its condition there.
///
/// # Errors
/// `NotFound` when it is not mounted there.
pub(crate) async fn stats_at(
    client: &Client,
    handle: &str,
    path: &str,
) -> Result<v1::NodeGetVolumeStatsResponse, Failure> {
    let request = v1::NodeGetVolumeStatsRequest {
        volume_id: handle.to_owned(),
        volume_path: path.to_owned(),
        staging_target_path: String::new(),
    };
    let mut node = client.node();
    let answer = node.node_get_volume_stats(request);
    call("NodeGetVolumeStats", PATIENCE, answer).await
}

/// The problem of a volume, if the agent reports one.
pub(crate) fn abnormal(condition: v1::VolumeCondition) -> Option<String> {
    condition.abnormal.then_some(condition.message)
}

/// Returns true if the failure means that nothing was created, also by earlier attempts of the same call.
pub(super) fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::OutOfRange
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::Unimplemented
    )
}

/// Spec and status of a volume's record.
fn volume_parts(record: &Record) -> (&VolumeSpec, &VolumeStatus) {
    match &record.body {
        Body::Volume(Of { spec, status }) => (spec, status),
        _ => unreachable!("a volume's pass has a volume's record"),
    }
}
