//! Publishing a staged volume to workloads, and growing its file system (CSI, `NodePublishVolume`, `NodeExpandVolume`).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Operations,
    devices::{Devices, PathState},
    labels::Read,
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    stage::gone,
    target_path::{self, Target, TargetCleanup},
    volume::check_capabilities,
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{Access, MountTable, Restrictions, loop_device},
    types::{
        AbsolutePath, AccessMode, AccessType, Capability, ImageKind, Reference, Size, SizeRange,
    },
};

/// A staged volume to be published.
#[derive(Debug, Clone)]
pub struct PublishVolume {
    /// Which volume.
    pub volume: Reference,
    /// Where it is staged.
    pub staging: Option<AbsolutePath>,
    /// Where a workload wants it: a directory, or a file for a block device. Made by this call.
    pub target: Target,
    /// How it is to be used.
    pub capability: Capability,
    /// Whether it may be written there.
    pub access: Access,
    /// Whether a volume of one node has one target at a time, whatever its access mode.
    pub one_target: bool,
}

/// Whether what is published was staged.
#[derive(Debug, Clone, Copy)]
pub(super) enum Staging {
    /// By a call before.
    Before,
    /// The dialect has none.
    Never,
}

impl PublishVolume {
    /// Whether writes are wanted, by the flag of the request and by those of the mount.
    pub(super) fn wanted(&self) -> Access {
        match &self.capability.access_type {
            AccessType::Mount { flags, .. } if flags.iter().any(|flag| flag == "ro") => {
                Access::ReadOnly
            }
            _ => self.access,
        }
    }

    /// What the mount flags do not allow at the target.
    fn restrictions(&self) -> Restrictions {
        match &self.capability.access_type {
            AccessType::Mount { flags, .. } => Restrictions::among(flags),
            AccessType::Block => Restrictions::NONE,
        }
    }
}

impl Operations {
    /// Makes a staged volume appear at the target path. A repeat finds it there.
    ///
    /// # Errors
    /// `Invalid`, `NotFound`, `Conflict` when published there otherwise, `Busy`,
    /// `Precondition` when it is not staged, or published elsewhere and wanted by one alone.
    pub async fn publish_volume(self: &Arc<Self>, request: PublishVolume) -> Result<()> {
        self.publish(request, Staging::Before).await
    }

    /// Makes a volume appear at the target path, as far as it may be used there.
    pub(super) async fn publish(
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
                let access = this.permitted(&found, &request.capability, request.wanted())?;
                match staging {
                    Staging::Before => found.publish(&request, access).await,
                    Staging::Never => found.publish_directly(&request, access).await,
                }
            })
            .await
    }

    /// Takes a volume away from a target path. Not published is no error.
    ///
    /// # Errors
    /// `InUse` while it is held open there, `Precondition` when something else is mounted there.
    pub async fn unpublish_volume(
        self: &Arc<Self>,
        volume: &Reference,
        target: Target,
        emptied: TargetCleanup,
    ) -> Result<()> {
        self.unpublish(volume, (target, emptied), Staging::Before)
            .await
    }

    /// Takes a volume away from the target path, which may be gone with it.
    pub(super) async fn unpublish(
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
        self.changes
            .run(holds, async move {
                match (place.find().await, staging) {
                    (Ok(found), Staging::Before) => found.unpublish(target, emptied).await,
                    (Ok(found), Staging::Never) => found.unpublish_directly(target, emptied).await,
                    (Err(error), _) => gone(error, target.path).await,
                }
            })
            .await
    }

    /// Grows the file system at `path` to its device, and the device first where it is smaller than `size` wants: who
    /// grows volumes for a whole cluster reaches no controller of this node. Says the size of the device in bytes.
    ///
    /// # Errors
    /// `NotFound` for the volume, or when it is not at `path`; `OutOfRange`, `NoSpace`, `Busy`.
    pub async fn expand_node(
        self: &Arc<Self>,
        volume: &Reference,
        path: &str,
        size: SizeRange,
    ) -> Result<Size> {
        let place = self.place(ImageKind::Volume, volume).map_err(not_here)?;
        let holds = vec![LockMode::Exclusive(place.id)];
        let path = path.to_owned();
        self.changes
            .run(holds, async move {
                let found = place.find().await?;
                let size_now = found.healthy()?.size;
                let path = found.shown_at(&path).await?;
                let wanted = if size.required().is_some_and(|required| required > size_now) {
                    let rules = found.class.backend.features().await?.sizes;
                    size.choose(&rules, Some(size_now))?
                } else {
                    // A growth that was cut off before its devices were told is finished here.
                    size_now
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
    pub(super) async fn shown_at(&self, path: &str) -> Result<PathBuf> {
        let path = path.to_owned();
        self.look(move |found, seen| found.shown(&path, seen)).await
    }

    /// The same, as it was seen.
    ///
    /// # Errors
    /// As those of [`LocatedImage::shown_at`].
    pub(super) fn shown(
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
        match devices.at(table, &path) {
            PathState::Ours(_) => Ok(path.to_path_buf()),
            // A raw volume shows nothing at its staging path.
            PathState::Nothing if devices.first().is_some() && self.image_is_raw() => {
                Ok(path.to_path_buf())
            }
            _ => Err(missing()),
        }
    }

    pub(super) fn image_is_raw(&self) -> bool {
        self.image.file_system().is_none() && !self.image.is_unformatted()
    }

    /// What is to be shown at the target, and where the volume is mounted when it is; none when it is at its target already.
    fn to_publish(
        &self,
        request: &PublishVolume,
        access: Access,
        seen: (&Devices, &MountTable),
    ) -> Result<Option<(PathBuf, Option<PathBuf>)>> {
        // First what stands at the target: one that is there in another way is a conflict however it is staged.
        let is_published = self.is_published(request, access, seen)?;
        let (source, staging) = self.staged(request, seen)?;
        if is_published {
            return Ok(None);
        }
        let is_for_one = request.capability.mode == AccessMode::SingleNodeSingleWriter;
        if is_for_one || request.one_target {
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

    /// Whether it is at its target already.
    ///
    /// # Errors
    /// `Conflict` when it is there in another way, `Precondition` when something else is.
    pub(super) fn is_published(
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
        if is_block != request.capability.is_block()
            || wanted.is_some_and(|wanted| wanted.name() != mount.fs_type)
            || devices.access_of(&mount, table) != access
            || !request.restrictions().hold_at(&mount)
        {
            return Err(Error::new(
                Kind::Conflict,
                format!(
                    "volume {} is already published at target_path {} with other arguments; unpublish it first",
                    self.handle, request.target.path
                ),
            ));
        }
        Ok(true)
    }

    /// Refuses a volume that is for one workload and is mounted somewhere already, but where it is staged.
    ///
    /// # Errors
    /// `Precondition`, saying where.
    pub(super) fn check_nowhere_else(
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

    /// What is to be shown at the target, and where the volume is mounted when it is.
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

    pub(super) async fn unpublish(&self, target: Target, emptied: TargetCleanup) -> Result<()> {
        let path = target.path.clone();
        let unpublished = self.look(move |_, (devices, _)| {
            let taken = target.find().and_then(|spot| {
                let published = spot.as_ref().map(|spot| devices.take_away(spot));
                Ok((spot, published.transpose()?.unwrap_or(false)))
            });
            let (spot, published) = match taken {
                // What a link leads to that must not be followed is not where this volume was published.
                Err(error) if error.kind() == Kind::Invalid => (None, false),
                other => other?,
            };
            if published {
                fail::point("unpublish.unmounted");
            }
            devices.free_unused()?;
            if let Some(spot) = spot
                && emptied == TargetCleanup::Removed
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

/// What a volume looks like at its target.
#[derive(Debug, Clone, Copy)]
pub(super) enum TargetContents {
    /// A mounted file system, and what it does not allow there.
    Directory(Restrictions),
    /// A block device.
    File,
}

/// Makes `source` appear at `target`; whatever fails, a target that this made does not stay behind.
pub(super) fn show(
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
        // The mode of a mount does not bind the writers of a device node: only a device that refuses writes does.
        (TargetContents::File, Access::ReadOnly) => loop_device::attach(source, Access::ReadOnly)
            .and_then(|view| {
                fail::point("publish.read-only-device");
                let bound = target.bind(&view.path, Access::ReadWrite, Restrictions::NONE);
                if bound.is_err() {
                    let _ = loop_device::detach(&view);
                }
                bound
            }),
    };
    if shown.is_err() && made {
        let _ = target_path::remove(target);
    }
    fail::point("publish.shown");
    shown
}
