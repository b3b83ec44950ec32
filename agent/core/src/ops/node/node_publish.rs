//! Publishes staged volumes to workloads, and expands their file systems (CSI, `NodePublishVolume`,
//! `NodeExpandVolume`).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::ops::{
    Operations,
    devices::{Devices, PathState, TakenAway},
    labels::Read,
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    stage::gone,
    staging_record::StagingRecord,
    target_path::{self, Target, TargetCleanup, TargetLocation},
    volume::check_capabilities,
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{Access, FileSystem, MountOptions, MountTable, Restrictions, loop_device},
    types::{
        AbsolutePath, AccessMode, AccessType, Capability, ImageKind, Map, Reference, Size,
        SizeRange,
    },
};

/// A request to publish a staged volume.
#[derive(Debug, Clone)]
pub struct PublishVolume {
    /// The volume.
    pub volume: Reference,
    /// The staging path.
    pub staging: Option<AbsolutePath>,
    /// The target path of the workload: a directory, or a file for a block device. Created by this call.
    pub target: Target,
    /// The capability of the request.
    pub capability: Capability,
    /// The access at the target.
    pub access: Access,
    /// What the controller returned when it published the volume, as known to the caller; may be empty.
    pub publish_context: Map,
}

/// States whether a volume is staged before it is published.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Staging {
    /// It is staged by an earlier call.
    Before,
    /// The dialect has no staging.
    Never,
}

impl PublishVolume {
    /// The requested access, from the flag of the request and the mount flags.
    pub(crate) fn wanted(&self) -> Access {
        match &self.capability.access_type {
            AccessType::Mount { flags, .. } if flags.iter().any(|flag| flag == "ro") => {
                Access::ReadOnly
            }
            _ => self.access,
        }
    }

    /// The mount options, as those of a file system of this kind; none if they do not fit it.
    pub(crate) fn options(&self, kind: FileSystem) -> Option<MountOptions> {
        match &self.capability.access_type {
            AccessType::Mount { flags, .. } => MountOptions::parse(kind, flags).ok(),
            AccessType::Block => None,
        }
    }

    /// The restrictions at the target, from the mount flags.
    fn restrictions(&self) -> Restrictions {
        match &self.capability.access_type {
            AccessType::Mount { flags, .. } => Restrictions::among(flags),
            AccessType::Block => Restrictions::NONE,
        }
    }
}

impl Operations {
    /// Publishes a staged volume at the target path. Idempotent.
    ///
    /// # Errors
    /// `Invalid`, `NotFound`, `Conflict` if published there with other arguments, `Busy`, `Precondition` if it is not
    /// staged, or if it is published elsewhere and its access mode permits one workload only.
    pub async fn publish_volume(self: &Arc<Self>, request: PublishVolume) -> Result<()> {
        self.publish(request, Staging::Before).await
    }

    /// Publishes a volume at the target path, with the permitted access.
    pub(crate) async fn publish(
        self: &Arc<Self>,
        request: PublishVolume,
        staging: Staging,
    ) -> Result<()> {
        let published = self.publish_as_permitted(request, staging).await;
        published.map_err(Error::exceeds_on_node)
    }

    async fn publish_as_permitted(
        self: &Arc<Self>,
        request: PublishVolume,
        staging: Staging,
    ) -> Result<()> {
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
                    request.wanted(),
                    &request.publish_context,
                )?;
                match staging {
                    Staging::Before => {
                        found.publish(&request, access).await?;
                        this.limit_if_possible(&found).await;
                    }
                    Staging::Never => {
                        found.publish_directly(&request, access).await?;
                        this.limit_if_possible(&found).await;
                    }
                }
                Ok(())
            })
            .await
    }

    /// Unpublishes a volume from a target path. Idempotent: a volume that is not published is no error.
    ///
    /// # Errors
    /// `InUse` while it is open there, `Precondition` if something else is mounted over it.
    pub async fn unpublish_volume(
        self: &Arc<Self>,
        volume: &Reference,
        target: Target,
        emptied: TargetCleanup,
    ) -> Result<()> {
        self.unpublish(volume, (target, emptied), Staging::Before)
            .await
    }

    /// Unpublishes a volume from the target path, which may not exist any more.
    pub(crate) async fn unpublish(
        self: &Arc<Self>,
        volume: &Reference,
        (target, emptied): (Target, TargetCleanup),
        staging: Staging,
    ) -> Result<()> {
        let place = match self.place(ImageKind::Volume, volume) {
            Ok(place) => place,
            Err(error) => return gone(error, target.path).await,
        };
        let holds = vec![LockMode::Exclusive(place.id)];
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                match (place.find().await, staging) {
                    (Ok(found), Staging::Before) => found.unpublish(target, emptied).await,
                    (Ok(found), Staging::Never) => {
                        this.unpublish_and_detach(&found, target, emptied).await
                    }
                    (Err(error), _) => gone(error, target.path).await,
                }
            })
            .await
    }

    /// Grows the file system at `path` to the size of its device. Grows the device first if it is smaller than `size`,
    /// because a cluster-wide resizer does not call the controller of this node. Returns the size of the device.
    ///
    /// # Errors
    /// `NotFound` for the volume, or if it is not at `path`; `Unsupported`, `OutOfRange`, `NoSpace`, `Busy`.
    pub async fn expand_node(
        self: &Arc<Self>,
        volume: &Reference,
        path: &str,
        size: SizeRange,
        capability: Option<Capability>,
    ) -> Result<Size> {
        if let Some(capability) = &capability {
            check_capabilities("volume_capability", std::slice::from_ref(capability))?;
        }
        let place = self.place(ImageKind::Volume, volume).map_err(not_here)?;
        let holds = vec![LockMode::Exclusive(place.id)];
        let path = path.to_owned();
        self.changes
            .run(holds, async move {
                let found = place.find().await?;
                let size_now = found.healthy()?.size;
                found.supports(capability.as_slice())?;
                let path = found.shown_at(&path).await?;
                let wanted = if size == SizeRange::default() {
                    // Completes an expansion that was interrupted before the devices were resized.
                    size_now
                } else {
                    // A volume never shrinks: a limit below its current size is OUT_OF_RANGE.
                    let rules = found.class.backend.features().await?.sizes;
                    size.choose(&rules, Some(size_now))?
                };
                let grown = found.class.backend.grow(found.image.id, wanted).await?;
                found.follow_device(&path).await?;
                fail::point("expand-node.grown");
                Ok(grown.into_inner().size)
            })
            .await
    }
}

impl LocatedImage {
    /// The path, if this volume is staged or published there.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub(crate) async fn shown_at(&self, path: &str) -> Result<PathBuf> {
        let path = path.to_owned();
        self.look(move |found, seen| found.shown(&path, seen)).await
    }

    /// Like [`LocatedImage::shown_at`], with devices and mounts already read.
    ///
    /// # Errors
    /// As those of [`LocatedImage::shown_at`].
    pub(crate) fn shown(
        &self,
        path: &str,
        (devices, table): (&Devices, &MountTable),
    ) -> Result<PathBuf> {
        let missing = || {
            Error::not_found(format!(
                "volume {} is neither staged nor published at volume_path {path:?}",
                self.handle
            ))
        };
        let path = AbsolutePath::parse("volume_path", path).map_err(|_| missing())?;
        let is_staged_raw =
            || devices.first().is_some() && StagingRecord::of(&self.image).is_raw_at(&path);
        match devices.at(table, &path) {
            PathState::Ours(_) => Ok(path.to_path_buf()),
            // A raw volume has no mount at its staging path; a caller may also name its device.
            PathState::Nothing if is_staged_raw() || devices.includes(&path) => {
                Ok(path.to_path_buf())
            }
            _ => Err(missing()),
        }
    }

    pub(crate) fn image_is_raw(&self) -> bool {
        self.image.file_system().is_none() && !self.image.is_unformatted()
    }

    /// The source of the bind mount, and the staging mount point if the volume is mounted; none if it is already
    /// published.
    fn to_publish(
        &self,
        request: &PublishVolume,
        access: Access,
        seen: (&Devices, &MountTable),
    ) -> Result<Option<(PathBuf, Option<PathBuf>)>> {
        // The target is checked first: a publication with other arguments is a conflict regardless of staging.
        let is_published = self.is_published(request, access, seen)?;
        if is_published {
            self.staged(request, seen)?;
            return Ok(None);
        }
        let (source, staging) = self.staged_as_wanted(request, access, seen)?;
        // The other single-node modes permit one target (CSI, "NodePublishVolume", second table).
        if request.capability.mode != AccessMode::SingleNodeMultiWriter {
            self.check_nowhere_else(seen, staging.as_deref())?;
        }
        Ok(Some((source, staging)))
    }

    async fn publish(&self, request: &PublishVolume, access: Access) -> Result<()> {
        let wanted = request.clone();
        let looked = self.look(move |found, seen| found.to_publish(&wanted, access, seen));
        let Some((source, staging)) = looked.await? else {
            return Ok(());
        };
        if let Some(staging) = &staging {
            self.follow_device_if_possible(staging).await?;
        }
        let target = request.target.clone();
        let form = if request.capability.is_block() {
            TargetContents::File
        } else {
            TargetContents::Directory(request.restrictions())
        };
        blocking(move || show(&source, &target, form, access)).await?;
        tracing::info!(volume.id = %self.handle, path = %request.target.path, "volume published");
        Ok(())
    }

    /// Returns true if it is already published at its target.
    ///
    /// # Errors
    /// `Conflict` if it is published there with other arguments, `Precondition` if something else is mounted there.
    pub(crate) fn is_published(
        &self,
        request: &PublishVolume,
        access: Access,
        (devices, table): (&Devices, &MountTable),
    ) -> Result<bool> {
        let spot = request.target.find()?;
        let at = spot.map_or(Ok(PathState::Nothing), |spot| devices.at_spot(&spot))?;
        let mount = match at {
            PathState::Foreign(mount) => return Err(PathState::foreign("target_path", &mount)),
            PathState::Nothing => return Ok(false),
            PathState::Ours(mount) => mount,
        };
        let is_block = mount.fs_type == "devtmpfs";
        let wanted = request.capability.file_system();
        // A bind mount has the restrictions of the staging mount, too.
        let staged = request.staging.as_ref();
        let staged = staged.and_then(|staging| match devices.at(table, staging) {
            PathState::Ours(staged) => Some(Restrictions::at(&staged)),
            _ => None,
        });
        let restrictions = request
            .restrictions()
            .and(staged.unwrap_or(Restrictions::NONE));
        if is_block != request.capability.is_block()
            || wanted.is_some_and(|wanted| wanted.name() != mount.fs_type)
            || devices.access_of(&mount, table) != access
            || !is_block && !restrictions.are_those_of(&mount)
        {
            return Err(published_otherwise(self, &request.target.path));
        }
        Ok(true)
    }

    /// Refuses a single-workload volume that is already mounted anywhere except at its staging path.
    ///
    /// # Errors
    /// `Precondition`, naming the mount point.
    pub(crate) fn check_nowhere_else(
        &self,
        (devices, table): (&Devices, &MountTable),
        staging: Option<&Path>,
    ) -> Result<()> {
        let mut others = devices.mounts(table);
        let Some(other) = others.find(|mount| Some(mount.target.as_path()) != staging) else {
            return Ok(());
        };
        Err(Error::new(
            Kind::Precondition,
            format!(
                "volume {} can be published to one workload only and is already mounted at {}; unpublish it there first",
                self.handle,
                other.target.display()
            ),
        ))
    }

    /// The same as [`Self::staged`]; refuses a file system that does not suit the request.
    ///
    /// # Errors
    /// `Precondition`, also if it is staged with another file system, read-only, or without the requested options.
    fn staged_as_wanted(
        &self,
        request: &PublishVolume,
        access: Access,
        seen: (&Devices, &MountTable),
    ) -> Result<(PathBuf, Option<PathBuf>)> {
        let staged = self.staged(request, seen)?;
        let mount = staged.1.as_deref().and_then(|staging| seen.1.at(staging));
        let Some(mount) = mount else {
            return Ok(staged);
        };
        let refused = |why: String| {
            Err(Error::new(
                Kind::Precondition,
                format!("volume {} {why}", self.handle),
            ))
        };
        if let Some(wanted) = request.capability.file_system()
            && wanted.name() != mount.fs_type
        {
            return refused(format!(
                "is staged with file system {}, not {wanted}",
                mount.fs_type
            ));
        }
        if access == Access::ReadWrite && mount.read_only {
            return refused(
                "is staged read-only and cannot be published writable; unstage it, and stage it writable"
                    .to_owned(),
            );
        }
        if access == Access::ReadWrite && mount.is_file_system_read_only() {
            return refused(
                "cannot be published writable: its file system became read-only; check the kernel log"
                    .to_owned(),
            );
        }
        let kind = mount.fs_type.parse::<FileSystem>().ok();
        let options = kind.and_then(|kind| request.options(kind));
        if options.is_some_and(|options| !StagingRecord::of(&self.image).provides(&options)) {
            return refused(
                "is staged without the options for its file system among volume_capability.mount.mount_flags"
                    .to_owned(),
            );
        }
        Ok(staged)
    }

    /// The source of the bind mount, and the staging mount point if the volume is mounted.
    fn staged(
        &self,
        request: &PublishVolume,
        (devices, table): (&Devices, &MountTable),
    ) -> Result<(PathBuf, Option<PathBuf>)> {
        let refused = |why: String| {
            Err(Error::new(
                Kind::Precondition,
                format!("volume {} {why}", self.handle),
            ))
        };
        let Some(staging) = &request.staging else {
            return refused(
                "cannot be published without staging_target_path; stage it first".to_owned(),
            );
        };
        let Some(device) = devices.first() else {
            return refused(format!(
                "is not staged at staging_target_path {staging}; stage it first"
            ));
        };
        if request.capability.is_block() {
            if let PathState::Ours(mount) = devices.at(table, staging) {
                return refused(format!(
                    "is staged as a file system at {}, not as a block device",
                    mount.target.display()
                ));
            }
            return Ok((device.to_owned(), None));
        }
        match devices.at(table, staging) {
            PathState::Ours(mount) if mount.fs_type != "devtmpfs" => {
                Ok((mount.target.clone(), Some(mount.target)))
            }
            _ => refused(format!(
                "is not staged at staging_target_path {staging}; stage it first"
            )),
        }
    }

    pub(crate) async fn unpublish(&self, target: Target, emptied: TargetCleanup) -> Result<()> {
        let path = target.path.clone();
        let unpublished = self.look(move |_, (devices, _)| {
            let taken = target.find().and_then(|spot| {
                let taken = spot.as_ref().map(|spot| devices.take_away(spot));
                Ok((spot, taken.transpose()?.unwrap_or(TakenAway::Nothing)))
            });
            let (spot, taken) = match taken {
                // A target behind a forbidden symbolic link cannot be where this volume was published.
                Err(error) if error.kind() == Kind::Invalid => (None, TakenAway::Nothing),
                other => other?,
            };
            let published = taken == TakenAway::Mount;
            if published {
                fail::point("unpublish.unmounted");
            }
            devices.free_unused()?;
            if let Some(spot) = spot
                && emptied == TargetCleanup::Removed
                && taken != TakenAway::Foreign
            {
                target_path::remove(&spot)?;
            }
            Ok(published)
        });
        if unpublished.await? {
            tracing::info!(volume.id = %self.handle, path = %path, "volume unpublished");
        }
        Ok(())
    }
}

/// The error for a volume that is published at a target with other arguments.
pub(crate) fn published_otherwise(found: &LocatedImage, target: &AbsolutePath) -> Error {
    Error::new(
        Kind::Conflict,
        format!(
            "volume {} is already published at target_path {target} with other arguments; unpublish it first",
            found.handle
        ),
    )
}

/// The form of a volume at its target.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TargetContents {
    /// A mounted file system, with its mount restrictions.
    Directory(Restrictions),
    /// A block device.
    File,
}

/// Bind-mounts `source` at `target`; removes a target that it created on error.
pub(crate) fn show(
    source: &Path,
    target: &Target,
    form: TargetContents,
    access: Access,
) -> Result<()> {
    let target = &target.make()?;
    fail::point("publish.found");
    let made = match form {
        TargetContents::File => target_path::make_file(target)?,
        TargetContents::Directory(_) => target_path::make_directory(target)?,
    };
    fail::point("publish.target");
    let shown = match (form, access) {
        (TargetContents::Directory(restrictions), _) => target.bind(source, access, restrictions),
        (TargetContents::File, Access::ReadWrite) => {
            target.bind(source, access, Restrictions::NONE)
        }
        // A read-only mount does not prevent writes through a device node: only a read-only device does.
        (TargetContents::File, Access::ReadOnly) => show_read_only(source, target),
    };
    if shown.is_err() && made {
        let _ = target_path::remove(target);
    }
    fail::point("publish.shown");
    shown
}

/// Bind-mounts a read-only device over the device `source`.
fn show_read_only(source: &Path, target: &TargetLocation) -> Result<()> {
    let (view, hold) = loop_device::attach_and_hold(source, Access::ReadOnly)?;
    fail::point("publish.read-only-device");
    let bound = target.bind(&view.path, Access::ReadWrite, Restrictions::NONE);
    drop(hold);
    if bound.is_err() {
        let _ = loop_device::detach(&view);
    }
    bound
}
