//! Staging: attaches the block device of a volume and mounts its file system, so that it can be published (CSI,
//! `NodeStageVolume`).

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::ops::{
    Operations,
    devices::{Devices, PathState},
    fs_group,
    labels::{self, Read},
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    staging_record::StagingRecord,
    volume::check_capabilities,
};
use crate::{
    Error, Kind, Result,
    backend::{Change, LabelChange, encrypted::is_encrypted},
    blocking, fail,
    host::{
        Access, FileSystem, MountOptions, MountTable, Probe,
        format::{self, FormatTarget},
        grow, grow_unmounted, may_grow_mounted_ext4, mount, probe,
    },
    types::{AbsolutePath, AccessType, Capability, ImageKind, Map, Reference},
};

/// A request to stage a volume.
#[derive(Debug, Clone)]
pub struct StageVolume {
    /// The volume.
    pub volume: Reference,
    /// An existing directory that the file system is mounted on.
    pub staging: AbsolutePath,
    /// The capability of the request.
    pub capability: Capability,
    /// What the controller returned when it published the volume, as known to the caller; may be empty.
    pub publish_context: Map,
}

/// Checks mount flags against the allowlist of the file system; if none is named, against those of all file systems.
pub(crate) fn check_flags(field: &str, kind: Option<FileSystem>, flags: &[String]) -> Result<()> {
    let check = |kind: FileSystem| MountOptions::parse(kind, flags).map(|_| ());
    let checked = match kind {
        Some(kind) => check(kind),
        None => FileSystem::ALL
            .into_iter()
            .map(check)
            .find(Result::is_ok)
            .unwrap_or_else(|| check(FileSystem::Ext4)),
    };
    checked.map_err(|error| Error::unsupported(format!("{field}.mount.mount_flags: {error}")))
}

impl Operations {
    /// Attaches a volume and mounts its file system at the staging path, after formatting it if it was never formatted.
    /// Idempotent; after an interruption the repeated call runs all steps again.
    ///
    /// # Errors
    /// `Invalid`, `NotFound`, `Conflict` if staged with other arguments, `Busy`, `Precondition`, `NoSpace`.
    pub async fn stage_volume(self: &Arc<Self>, request: StageVolume) -> Result<()> {
        let staged = self.stage(request).await;
        staged.map_err(Error::exceeds_on_node)
    }

    async fn stage(self: &Arc<Self>, request: StageVolume) -> Result<()> {
        check_capabilities(
            "volume_capability",
            std::slice::from_ref(&request.capability),
        )?;
        let place = self
            .place(ImageKind::Volume, &request.volume)
            .map_err(not_here)?;
        let holds = vec![LockMode::Exclusive(place.id)];
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                let found = place.find().await?;
                found.healthy()?;
                let access = this.permitted(
                    &found,
                    &request.capability,
                    Access::ReadWrite,
                    &request.publish_context,
                )?;
                let staging = request.staging.clone();
                blocking(move || check_staging(&staging)).await?;
                match &request.capability.access_type {
                    AccessType::Block => found.stage_block(&request.staging).await?,
                    AccessType::Mount { .. } => found.stage_mount(&request, access).await?,
                }
                this.limit_if_possible(&found).await;
                tracing::info!(volume.id = %found.handle, path = %request.staging, "volume staged");
                Ok(())
            })
            .await
    }

    /// The access that the controller publication and the access mode permit.
    ///
    /// # Errors
    /// [`Kind::Precondition`] if the controller has not published it, or with other arguments.
    pub(crate) fn permitted(
        &self,
        found: &LocatedImage,
        capability: &Capability,
        wanted: Access,
        context: &Map,
    ) -> Result<Access> {
        let read_only = wanted == Access::ReadOnly || capability.mode.is_reader_only();
        let mut access = if read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        if !self.settings.attach {
            return Ok(access);
        }
        let refused = |why: &str| {
            Err(Error::new(
                Kind::Precondition,
                format!("volume {} {why}", found.handle),
            ))
        };
        let Some(published) = found.image.publication()? else {
            return refused(
                "is not published to this node by the controller; call ControllerPublishVolume first",
            );
        };
        if !published.allows(capability.mode) || published.block != capability.is_block() {
            return refused(
                "was published by the controller with another access mode or access type; unpublish it and publish it as needed",
            );
        }
        if !published.is_told_by(context) {
            return refused(
                "was published by the controller with another access than publish_context says; repeat the call with that of the last publication",
            );
        }
        if published.read_only {
            access = Access::ReadOnly;
        }
        Ok(access)
    }

    /// Unmounts a volume from the staging path and detaches its device. Idempotent: a volume that is not staged is no
    /// error.
    ///
    /// # Errors
    /// `InUse` while it is published or open, `Precondition` if something else is mounted there.
    pub async fn unstage_volume(
        self: &Arc<Self>,
        volume: &Reference,
        staging: AbsolutePath,
    ) -> Result<()> {
        let place = match self.place(ImageKind::Volume, volume) {
            Ok(place) => place,
            Err(error) => return gone(error, staging).await,
        };
        let holds = vec![LockMode::Exclusive(place.id)];
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                match place.find().await {
                    Ok(found) => this.unstage(&found, staging).await,
                    Err(error) => gone(error, staging).await,
                }
            })
            .await
    }
}

/// The result of an unstage or unpublish of a volume that does not exist: success, unless something is mounted at the
/// path.
pub(crate) async fn gone(error: Error, path: AbsolutePath) -> Result<()> {
    let error = not_here(error);
    if error.kind() != Kind::NotFound
        || blocking(move || Ok(MountTable::read()?.at(&path).is_some())).await?
    {
        return Err(error);
    }
    Ok(())
}

fn check_staging(staging: &Path) -> Result<()> {
    match fs::metadata(staging) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::invalid(format!(
            "staging_target_path {} is not a directory",
            staging.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(Error::invalid(format!(
            "staging_target_path {} has a parent that is not a directory",
            staging.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::new(
            Kind::Precondition,
            format!(
                "staging_target_path {} does not exist; create the directory first",
                staging.display()
            ),
        )),
        Err(error) => Err(Error::io(
            format!("could not read staging_target_path {}", staging.display()),
            error,
        )),
    }
}

impl LocatedImage {
    pub(crate) async fn stage_block(&self, staging: &Path) -> Result<()> {
        let (staging, record) = (staging.to_owned(), StagingRecord::raw(staging));
        let at = self.look(move |_, (devices, table)| Ok(devices.at(table, &staging)));
        if let PathState::Ours(mount) = at.await? {
            return Err(staged_otherwise(self, &mount.target));
        }
        // A raw user may write any data: from now on this volume is never formatted.
        let change = if self.image.is_unformatted() {
            LabelChange::remove(labels::FORMAT)
        } else {
            LabelChange::default()
        };
        self.record_staging(&record, change).await?;
        fail::point("stage.raw.claimed");
        self.class
            .backend
            .attach(self.image.id, Access::ReadWrite)
            .await
            .map(drop)
    }

    pub(crate) async fn stage_mount(&self, request: &StageVolume, access: Access) -> Result<()> {
        let AccessType::Mount {
            file_system,
            flags,
            group,
        } = &request.capability.access_type
        else {
            return Err(Error::new(Kind::Bug, "mount requested for a raw volume"));
        };
        let staging = request.staging.clone();
        let before = self.look(move |_, (devices, table)| {
            let is_used = devices.mounts(table).next().is_some();
            Ok((devices.at(table, &staging), is_used))
        });
        let (at, is_used) = before.await?;
        if let PathState::Ours(mount) = &at
            && file_system.is_some_and(|wanted| wanted.name() != mount.fs_type)
        {
            return Err(staged_otherwise(self, &mount.target));
        }
        let has = self.image.file_system();
        let kind = match (file_system, has) {
            (Some(wanted), Some(has)) if *wanted != has => {
                return Err(Error::unsupported(format!(
                    "volume_capability.mount.fs_type is {wanted}, but the file system of volume {} is {has}",
                    self.handle
                )));
            }
            (Some(wanted), _) => *wanted,
            (None, Some(has)) => has,
            (None, None) => self.class.backend.features().await?.file_system,
        };
        let mut options = MountOptions::parse(kind, flags).map_err(|error| {
            Error::unsupported(format!("volume_capability.mount.mount_flags: {error}"))
        })?;
        if access == Access::ReadOnly {
            options = options.with_access(access);
        }
        let record = StagingRecord::mounted(&options);
        match at {
            PathState::Foreign(mount) => {
                return Err(PathState::foreign("staging_target_path", &mount));
            }
            PathState::Ours(mount) => {
                // A file system that became read-only after an error is still staged as requested.
                if mount.fs_type != kind.name()
                    || mount.access() != options.access()
                    || !options.restrictions().hold_at(&mount)
                    || StagingRecord::of(&self.image) != record
                {
                    return Err(staged_otherwise(self, &mount.target));
                }
            }
            PathState::Nothing => {
                self.record_staging(&record, LabelChange::default()).await?;
                let mounted = self.attach_and_mount(&request.staging, kind, options).await;
                mounted.map_err(|error| {
                    if is_used {
                        self.explain_raw(error, &request.staging)
                    } else {
                        error
                    }
                })?;
            }
        }
        fail::point("stage.mounted");
        if let Some(group) = *group
            && access == Access::ReadWrite
        {
            let staging = request.staging.clone();
            blocking(move || fs_group::give(&staging, group)).await?;
        }
        self.follow_device_if_possible(&request.staging).await
    }

    /// The error for a volume in use that cannot be mounted, perhaps because it is used raw.
    fn explain_raw(&self, error: Error, staging: &Path) -> Error {
        if self.image_is_raw() && error.kind() == Kind::Precondition {
            return staged_otherwise(self, staging).because(error);
        }
        error
    }

    /// Attaches and mounts; detaches the device on error.
    async fn attach_and_mount(
        &self,
        staging: &AbsolutePath,
        kind: FileSystem,
        options: MountOptions,
    ) -> Result<()> {
        let backend = &self.class.backend;
        let device = backend.attach(self.image.id, Access::ReadWrite).await?;
        let mounted = async {
            self.prepare(&device, kind).await?;
            // If the kernel does not permit growing a mounted ext4, it is grown before the mount.
            let path = device.to_path_buf();
            let must_grow_now = move || {
                Ok(!may_grow_mounted_ext4()
                    && MountTable::read()?.file_systems_of(&path)?.is_empty())
            };
            if kind == FileSystem::Ext4 && blocking(must_grow_now).await? {
                grow_unmounted(&device, kind).await?;
            }
            fail::point("stage.prepared");
            let (path, target) = (device.to_path_buf(), staging.clone());
            blocking(move || mount::mount_device(&path, &target, kind, &options).map(|_| ())).await
        };
        let mounted = mounted.await;
        drop(device);
        let Err(error) = mounted else {
            return Ok(());
        };
        // In use means that it was attached before for another caller; then it stays attached.
        if let Err(second) = backend.detach(self.image.id).await
            && second.kind() != Kind::InUse
        {
            return Err(error.undo_failed("the device could not be detached", &second));
        }
        Err(error)
    }

    /// Makes sure that the requested file system is on the device. Formats only volumes that the agent created and that
    /// were never used.
    pub(crate) async fn prepare(&self, device: &Path, kind: FileSystem) -> Result<()> {
        let path = device.to_owned();
        let found = blocking(move || probe(&path)).await?;
        let refused = |what: String| {
            Err(Error::new(
                Kind::Precondition,
                format!("volume {} {what}", self.handle),
            ))
        };
        match found {
            // The remains of an interrupted format were never visible to a caller.
            _ if self.image.is_format_running() => self.format(device, kind, FormatTarget::Debris).await,
            Probe::Blank if self.image.is_unformatted() => {
                self.format(device, kind, self.untouched()).await
            }
            Probe::Blank if self.image.is_raw_alone() => refused(
                "was created as a raw block device, without a file system; it was not formatted".to_owned(),
            ),
            Probe::Blank => refused(
                "was used before but its device is blank: the data is lost; it was not formatted again"
                    .to_owned(),
            ),
            Probe::Known(found) if found.kind != kind => Err(Error::unsupported(format!(
                "volume_capability.mount.fs_type is {kind}, but the file system of volume {} is {}",
                self.handle, found.kind
            ))),
            Probe::Known(_) if self.image.is_unformatted() => self.formatted(kind).await,
            Probe::Known(_) => self.renew_identity(device, kind).await,
            Probe::Foreign(name) => refused(format!(
                "contains {name}, which this agent did not create; it was not changed"
            )),
        }
    }

    /// The state of a volume that was never used.
    fn untouched(&self) -> FormatTarget {
        if is_encrypted(&self.image) {
            FormatTarget::Unzeroed
        } else {
            FormatTarget::Untouched
        }
    }

    /// Formats a volume that was never used.
    async fn format(&self, device: &Path, kind: FileSystem, ground: FormatTarget) -> Result<()> {
        format::check_maker(kind).await?;
        let running = LabelChange::set(labels::FORMAT, "running");
        self.class.backend.relabel(self.image.id, &running).await?;
        fail::point("stage.format.begun");
        format::make(device, kind, ground).await?;
        fail::point("stage.format.made");
        self.formatted(kind).await?;
        tracing::info!(volume.id = %self.handle, fs = %kind, "volume formatted");
        Ok(())
    }

    /// Records that the volume has a file system, before it is mounted: from then on it must never be formatted.
    async fn formatted(&self, kind: FileSystem) -> Result<()> {
        let mut change = LabelChange::remove(labels::FORMAT);
        change
            .set
            .insert(labels::FILE_SYSTEM.to_owned(), kind.to_string());
        self.class.backend.relabel(self.image.id, &change).await?;
        fail::point("stage.format.recorded");
        Ok(())
    }

    /// Gives the file system of a copy a new UUID if the kernel does not mount two file systems with the same one.
    async fn renew_identity(&self, device: &Path, kind: FileSystem) -> Result<()> {
        if kind != FileSystem::Btrfs || self.image.label(labels::IDENTITY) != Some("copied") {
            return Ok(());
        }
        format::new_uuid(device, kind).await?;
        fail::point("stage.renewed");
        let change = LabelChange::remove(labels::IDENTITY);
        self.class.backend.relabel(self.image.id, &change).await?;
        Ok(())
    }

    /// Grows the file system at `mount_point` to the size of its device, if it is smaller and writable.
    pub(crate) async fn follow_device(&self, mount_point: &Path) -> Result<()> {
        let path = mount_point.to_owned();
        let at = blocking(move || Ok(MountTable::read()?.at(&path).cloned()));
        let Some(mount) = at.await? else {
            return Ok(());
        };
        let Ok(kind) = mount.fs_type.parse::<FileSystem>() else {
            return Ok(());
        };
        if mount.is_file_system_read_only() {
            return Ok(());
        }
        let device = PathBuf::from(&mount.source);
        grow(&device, mount_point, kind).await?;
        Ok(())
    }

    /// Like [`Self::follow_device`], but only logs a precondition error: the volume is usable with a smaller file
    /// system.
    pub(crate) async fn follow_device_if_possible(&self, mount_point: &Path) -> Result<()> {
        match self.follow_device(mount_point).await {
            Err(error) if error.kind() == Kind::Precondition => {
                tracing::warn!(volume.id = %self.handle, error = %error.chain(), "file system not grown to the size of its volume");
                Ok(())
            }
            other => other,
        }
    }

    /// Where the volume is staged, seen from a path.
    ///
    /// # Errors
    /// `Precondition` if something else is mounted over it there, `InUse` if it is staged there and published elsewhere.
    fn staged_at(
        &self,
        staging: &Path,
        (devices, table): (&Devices, &MountTable),
    ) -> Result<Staged> {
        let own = mount::resolve(staging).unwrap_or_else(|_| staging.to_owned());
        let is_mounted_here = devices.mounts(table).any(|mount| mount.target == own);
        if is_mounted_here && let PathState::Foreign(mount) = devices.at(table, staging) {
            return Err(PathState::foreign("staging_target_path", &mount));
        }
        let record = StagingRecord::of(&self.image);
        let is_here = is_mounted_here || record.is_raw_at(staging);
        let other = devices.mounts(table).find(|mount| mount.target != own);
        match other {
            Some(other) if is_here => Err(Error::new(
                Kind::InUse,
                format!(
                    "volume {} is still in use at {}; unpublish it first",
                    self.handle,
                    other.target.display()
                ),
            )),
            Some(_) => Ok(Staged::Elsewhere),
            None if is_mounted_here => Ok(Staged::Here),
            None if record.is_raw() && !is_here && devices.first().is_some() => {
                Ok(Staged::Elsewhere)
            }
            None => Ok(Staged::WithoutMount),
        }
    }

    async fn unmount_and_detach(
        &self,
        staging: &AbsolutePath,
        staged: Staged,
    ) -> Result<Change<()>> {
        if staged == Staged::Here {
            let target = staging.clone();
            blocking(move || mount::unmount(&target)).await?;
            fail::point("unstage.unmounted");
        }
        self.class.backend.detach(self.image.id).await
    }
}

impl Operations {
    async fn unstage(&self, found: &LocatedImage, staging: AbsolutePath) -> Result<()> {
        let path = staging.clone();
        let looked = found.look(move |found, seen| found.staged_at(&path, seen));
        let staged = looked.await?;
        if staged == Staged::Elsewhere {
            return Ok(());
        }
        self.unlimit(found).await;
        fail::point("unstage.unlimited");
        let detached = found.unmount_and_detach(&staging, staged).await;
        if detached.is_err() {
            self.limit_if_possible(found).await;
        }
        if detached?.is_made() || staged == Staged::Here {
            tracing::info!(volume.id = %found.handle, path = %staging, "volume unstaged");
        }
        Ok(())
    }
}

/// Where a volume is staged, seen from the staging path of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Staged {
    /// Mounted at this path, and nowhere else.
    Here,
    /// Not mounted anywhere: staged raw at this path, or left attached.
    WithoutMount,
    /// At another path, or published without being staged at this one.
    Elsewhere,
}

fn staged_otherwise(found: &LocatedImage, target: &Path) -> Error {
    Error::new(
        Kind::Conflict,
        format!(
            "volume {} is already staged at {} with other arguments; unstage it first",
            found.handle,
            target.display()
        ),
    )
}
