//! Reclaims the free blocks of volumes (package `reclaimspace`).

use std::{path::PathBuf, sync::Arc};

use crate::ops::{
    Operations,
    labels::Read,
    locks::LockMode,
    lookup::{LocatedImage, not_here},
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{Access, trim},
    types::{ImageKind, Reference},
};

/// Allocated bytes of a volume, if known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaimed {
    /// Before the free blocks were reclaimed.
    pub before: Option<u64>,
    /// After the free blocks were reclaimed.
    pub after: Option<u64>,
}

/// The method of reclaiming for a volume.
enum ReclaimMethod {
    /// None: only the raw user knows which blocks are free, or the blocks are preallocated.
    None,
    /// Trim the file system mounted here.
    Mounted(PathBuf),
    /// Trim a file system that is not mounted.
    Unmounted,
}

impl Operations {
    /// Reclaims the free blocks of the file system of a volume, mounted or not. Does nothing for a raw volume and for
    /// one with preallocated blocks.
    ///
    /// # Errors
    /// `NotFound`, `Busy`, `Precondition` if it is mounted read-only or cannot be mounted.
    pub async fn reclaim(self: &Arc<Self>, volume: &Reference) -> Result<Reclaimed> {
        self.reclaim_where(volume, None).await
    }

    /// Like [`Self::reclaim`], for a volume that is staged or published at `path`.
    ///
    /// # Errors
    /// Also `NotFound` if it is not at `path`, and `Precondition` for a raw volume.
    pub async fn reclaim_at(self: &Arc<Self>, volume: &Reference, path: &str) -> Result<Reclaimed> {
        self.reclaim_where(volume, Some(path.to_owned())).await
    }

    async fn reclaim_where(
        self: &Arc<Self>,
        volume: &Reference,
        path: Option<String>,
    ) -> Result<Reclaimed> {
        let place = self.place(ImageKind::Volume, volume).map_err(not_here)?;
        let holds = vec![LockMode::Exclusive(place.id)];
        self.changes
            .run(holds, async move {
                let found = place.find().await?;
                found.healthy()?;
                let way = match path {
                    None => found.way_of_all().await?,
                    Some(path) => found.way_at(&path).await?,
                };
                found.reclaim(way).await
            })
            .await
    }
}

impl LocatedImage {
    async fn way_at(&self, path: &str) -> Result<ReclaimMethod> {
        let path = path.to_owned();
        self.look(move |found, (devices, table)| {
            let path = found.shown(&path, (devices, table))?;
            match table.at(&path) {
                Some(mount) if mount.fs_type != "devtmpfs" => Ok(ReclaimMethod::Mounted(path)),
                _ => Err(Error::new(
                    Kind::Precondition,
                    format!(
                        "could not reclaim space of volume {}: it is used as a raw block device, and only its user can tell which blocks are free; discard them from there",
                        found.handle
                    ),
                )),
            }
        })
        .await
    }

    async fn way_of_all(&self) -> Result<ReclaimMethod> {
        self.look(|found, (devices, table)| {
            let mut mounts = devices.mounts(table);
            let mounted = mounts.find(|mount| mount.fs_type != "devtmpfs");
            if let Some(mount) = mounted {
                return Ok(ReclaimMethod::Mounted(mount.target.clone()));
            }
            // The contents of a raw volume belong to its user, and a volume that was never formatted has no free blocks
            // to reclaim.
            let is_used = devices.mounts(table).next().is_some();
            let is_new = found.image.is_unformatted() || found.image.is_format_running();
            if is_used || is_new || found.image.file_system().is_none() {
                return Ok(ReclaimMethod::None);
            }
            Ok(ReclaimMethod::Unmounted)
        })
        .await
    }

    async fn reclaim(&self, way: ReclaimMethod) -> Result<Reclaimed> {
        let backend = &self.class.backend;
        let before = backend.usage(self.image.id).await?;
        if backend.features().await?.takes_back {
            match way {
                ReclaimMethod::None => {}
                ReclaimMethod::Mounted(path) => blocking(move || trim::trim(&path)).await?,
                ReclaimMethod::Unmounted => self.trim_unmounted().await?,
            }
        }
        let after = backend.usage(self.image.id).await?;
        tracing::info!(volume.id = %self.handle, ?before, ?after, "free blocks reclaimed");
        Ok(Reclaimed { before, after })
    }

    async fn trim_unmounted(&self) -> Result<()> {
        let Some(kind) = self.image.file_system() else {
            return Ok(());
        };
        let backend = &self.class.backend;
        let device = backend.attach(self.image.id, Access::ReadWrite).await?;
        fail::point("reclaim.attached");
        let trimmed = async {
            self.prepare(&device, kind).await?;
            let path = device.to_path_buf();
            blocking(move || trim::trim_unmounted(&path, kind)).await
        };
        let trimmed = trimmed.await;
        drop(device);
        fail::point("reclaim.trimmed");
        let detached = backend.detach(self.image.id).await;
        trimmed?;
        detached.map(drop)
    }
}
