//! Volumes: delete.

use std::sync::Arc;

use crate::ops::{
    Operations,
    labels::Read,
    locks::LockMode,
    lookup::{LocatedImage, not_here},
};
use crate::{
    Error, Kind, Result,
    types::{ImageKind, Reference},
};

/// How a volume is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// As its class says.
    AsConfigured,
    /// Only if it holds no data.
    Blank,
    /// To the trash, whatever its class says.
    ToTrash,
}

impl Operations {
    /// Deletes a volume. Idempotent: one that does not exist is no error.
    ///
    /// # Errors
    /// `InUse` if it is published, attached or mounted, `Precondition` if it is protected or its record cannot be read.
    pub async fn delete_volume(self: &Arc<Self>, reference: &Reference) -> Result<()> {
        self.delete_volume_by(reference, Deletion::AsConfigured)
            .await
    }

    /// Deletes a volume that holds no data. Idempotent: one that does not exist is no error.
    ///
    /// # Errors
    /// `Precondition` if it was formatted or is raw, else those of [`Operations::delete_volume`].
    pub async fn delete_blank_volume(self: &Arc<Self>, reference: &Reference) -> Result<()> {
        self.delete_volume_by(reference, Deletion::Blank).await
    }

    /// Deletes a volume, while nobody else changes it.
    pub(crate) async fn delete_volume_by(
        self: &Arc<Self>,
        reference: &Reference,
        deletion: Deletion,
    ) -> Result<()> {
        let place = match self.place(ImageKind::Volume, reference) {
            Ok(place) => place,
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(not_here(error)),
        };
        let holds = vec![LockMode::Exclusive(place.id)];
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                let (backend, id) = (Arc::clone(&place.class.backend), place.id);
                let found = match place.find().await {
                    Ok(found) => found,
                    // An incomplete image is invisible to callers but takes space.
                    Err(error) if error.kind() == Kind::NotFound => {
                        return backend.delete(id).await.map(drop);
                    }
                    Err(error) => return Err(error),
                };
                if deletion == Deletion::Blank {
                    found.check_blank()?;
                }
                this.check_in_no_group(&found).await?;
                if deletion == Deletion::ToTrash && !found.image.is_blank() {
                    found.check_deletable()?;
                    return this.move_to_trash(&found).await;
                }
                this.delete_found_volume(&found).await
            })
            .await
    }

    /// Deletes a volume that is in no group, or whose group is deleted with it. If its class has a trash, and the volume
    /// may hold data, that is where it goes.
    ///
    /// # Errors
    /// As those of [`LocatedImage::check_deletable`], `InUse` if it is attached or mounted.
    pub(crate) async fn delete_found_volume(self: &Arc<Self>, found: &LocatedImage) -> Result<()> {
        found.check_deletable()?;
        self.forget_limits(found).await;
        if found.goes_to_trash() {
            return self.move_to_trash(found).await;
        }
        found.class.backend.delete(found.image.id).await?;
        self.known.remove(&found.class, found.image.id);
        tracing::info!(volume.id = %found.handle, "volume deleted");
        Ok(())
    }
}

impl LocatedImage {
    /// Returns true for a volume whose deletion moves it to the trash of its class: it may hold data.
    pub(crate) fn goes_to_trash(&self) -> bool {
        let is_volume = self.image.id.kind == ImageKind::Volume;
        is_volume && self.class.trash.is_some() && !self.image.is_blank()
    }

    /// Refuses a volume that must not be deleted now.
    ///
    /// # Errors
    /// `InUse` if it is published, `Precondition` if it is protected or its record cannot be read.
    pub(crate) fn check_deletable(&self) -> Result<()> {
        let (image, handle) = (self.readable()?, &self.handle);
        self.check_not_on_its_way()?;
        if image.is_protected() {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "volume {handle} is protected; set its mutable parameter protected to \"false\" first"
                ),
            ));
        }
        match image.publication()? {
            None => Ok(()),
            Some(published) => Err(Error::new(
                Kind::InUse,
                format!(
                    "volume {handle} is published to node {}; unpublish it first",
                    published.node
                ),
            )),
        }
    }

    /// Refuses a volume that may hold data.
    ///
    /// # Errors
    /// `Precondition`.
    fn check_blank(&self) -> Result<()> {
        if self.readable()?.is_blank() {
            return Ok(());
        }
        let message = format!("volume {} may hold data", self.handle);
        Err(Error::new(Kind::Precondition, message))
    }
}
