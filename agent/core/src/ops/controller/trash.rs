//! The trash: deleted volumes that can be undeleted until their time is over or their room is needed.
//!
//! A volume in the trash is an image of a kind of its own, so that nothing that looks for volumes finds it, and its name
//! can be used again at once. It keeps its data, its size and its labels, and takes the same space as before.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::delete_volume::Deletion;
use crate::ops::{
    Class, Listing, Operations, PageRequest, Volume,
    labels::{self, Read},
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    parameters,
    volume::volume_id,
};
use crate::{
    Error, Kind, Result,
    backend::{Image, LabelChange},
    fail,
    types::{ClassName, Handle, ImageId, ImageKind, Map, Name, Reference, Size},
};

/// More than the record of a volume takes.
const RECORD: Size = Size::from_kibibytes(64);

/// How long a class keeps what is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrashPolicy {
    /// The time for which a volume stays in the trash.
    pub keep: Duration,
    /// The fill of the storage, in percent, from which the oldest volumes in the trash are destroyed early.
    pub max_fill: Option<u32>,
}

impl Default for TrashPolicy {
    /// That of a class without one, for volumes whose manifest asks for the trash: a week.
    fn default() -> Self {
        Self {
            keep: Duration::from_hours(7 * 24),
            max_fill: None,
        }
    }
}

/// A volume in the trash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrashedVolume {
    /// Its handle in the trash. The one that it had as a volume belongs to its name.
    pub handle: Handle,
    /// The name that it was created with.
    pub name: String,
    /// The parameters that it was created with, and those that describe its owner.
    pub parameters: Map,
    /// Its size in bytes.
    pub size: Size,
    /// The time of its deletion.
    pub deleted: SystemTime,
    /// The time from which it may be destroyed.
    pub expires: SystemTime,
    /// A description of what is wrong with it.
    pub problem: Option<String>,
}

/// A page of the trash, and the classes that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trash {
    /// The page.
    pub page: Listing<TrashedVolume>,
    /// The classes that could not be read, each with the reason.
    pub unreadable: Vec<(ClassName, String)>,
}

impl Class {
    /// How long the class keeps what is deleted.
    pub(crate) fn trash_policy(&self) -> TrashPolicy {
        self.trash.unwrap_or_default()
    }
}

impl From<LocatedImage> for TrashedVolume {
    fn from(found: LocatedImage) -> Self {
        let deleted = deleted(&found.image);
        Self {
            name: found
                .image
                .label(labels::NAME)
                .unwrap_or_default()
                .to_owned(),
            parameters: found.image.parameters(),
            size: found.image.size,
            deleted,
            expires: deleted + found.class.trash_policy().keep,
            problem: found
                .image
                .health
                .fault()
                .map(|fault| fault.message.clone()),
            handle: found.handle,
        }
    }
}

/// When an image was moved to the trash; now, if its record is lost, so that nothing ends for that.
pub(crate) fn deleted(image: &Image) -> SystemTime {
    let nanoseconds = image.label(labels::TRASHED);
    let nanoseconds = nanoseconds.and_then(|text| text.parse().ok());
    nanoseconds.map_or_else(fail::now, |nanoseconds| {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds)
    })
}

impl Operations {
    /// Moves a volume to the trash, whatever its class says. Idempotent: one that does not exist is no error.
    ///
    /// # Errors
    /// Those of [`Operations::delete_volume`].
    pub async fn trash_volume(self: &Arc<Self>, reference: &Reference) -> Result<()> {
        self.delete_volume_by(reference, Deletion::ToTrash).await
    }

    /// Moves a volume that may be deleted to the trash. On a full disk, what is oldest there makes room for its record.
    ///
    /// # Errors
    /// `InUse` if it is attached or mounted.
    pub(crate) async fn move_to_trash(self: &Arc<Self>, found: &LocatedImage) -> Result<()> {
        let (now, volume) = (labels::time(fail::now()), found.image.id);
        let id = ImageId {
            kind: ImageKind::Trash,
            key: volume.key.within(&now),
        };
        let mut change = LabelChange::set(labels::TRASHED, now);
        change.remove = [labels::STAGED, labels::UNDELETED]
            .map(str::to_owned)
            .into();
        let backend = &found.class.backend;
        self.with_room(&found.class, RECORD, || backend.rename(volume, id, &change))
            .await?;
        fail::point("trash.moved");
        self.known.remove(&found.class, volume);
        let handle = self.handle_in(&found.class, id);
        tracing::info!(volume.id = %found.handle, trash.id = %handle, "volume moved to the trash");
        Ok(())
    }

    /// Lists the trash, in pages. A class that cannot be read is reported and does not hide the others.
    ///
    /// # Errors
    /// `StaleToken`.
    pub async fn list_trash(&self, page: &PageRequest) -> Result<Trash> {
        let list = |class: Class| async move { class.backend.list(ImageKind::Trash).await };
        let (mut all, mut unreadable) = (Vec::new(), Vec::new());
        for (class, images) in self.of_each_class(list).await {
            match images {
                Ok(images) => all.extend(images.into_iter().map(|image| self.found(&class, image))),
                Err(error) => unreadable.push((class.name, error.chain())),
            }
        }
        let page = page.cut(all)?.map(TrashedVolume::from);
        Ok(Trash { page, unreadable })
    }

    /// Gives a volume in the trash back, under its own name or another one. Idempotent.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` if there is a volume of that name.
    pub async fn undelete_volume(
        self: &Arc<Self>,
        reference: &Reference,
        name: Option<Name>,
    ) -> Result<Volume> {
        let place = self.place(ImageKind::Trash, reference).map_err(not_here)?;
        let trash = place.id;
        let found = match self.find(ImageKind::Trash, reference).await {
            Err(error) if error.kind() == Kind::NotFound => {
                return self.undeleted(&place.class, trash, error).await;
            }
            found => found?,
        };
        let name = match name {
            Some(name) => name,
            None => Name::parse("name", found.readable()?.label(labels::NAME).unwrap_or(""))?,
        };
        let id = volume_id(&name);
        let holds = vec![LockMode::Exclusive(trash), LockMode::Exclusive(id)];
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                let found = place.find().await?;
                found.readable()?;
                if let Some(there) = this.named(&found.class, id).await? {
                    return Err(Error::new(
                        Kind::Conflict,
                        format!(
                            "volume {} cannot be undeleted as {:?}: volume {} has this name; give another one",
                            found.handle,
                            name.as_str(),
                            there.handle
                        ),
                    ));
                }
                let mut change = LabelChange::remove(labels::TRASHED);
                change.set.extend([
                    (labels::NAME.to_owned(), name.to_string()),
                    (labels::UNDELETED.to_owned(), trash.key.to_string()),
                ]);
                if let Some(parameters) = parameters::released(found.image.parameters()) {
                    let text = labels::json(&parameters)?;
                    change.set.insert(labels::PARAMETERS.to_owned(), text);
                }
                let backend = &found.class.backend;
                let image = backend.rename(trash, id, &change).await?.into_inner();
                fail::point("trash.undeleted");
                this.known.insert(&found.class, id);
                let volume = this.found(&found.class, image);
                tracing::info!(volume.id = %volume.handle, trash.id = %found.handle, "volume undeleted");
                Ok(volume.into())
            })
            .await
    }

    /// The volume that an earlier call has given back. One that was interrupted may have left labels of the trash.
    async fn undeleted(
        self: &Arc<Self>,
        class: &Class,
        trash: ImageId,
        error: Error,
    ) -> Result<Volume> {
        let key = trash.key.to_string();
        let volumes = class.list(ImageKind::Volume).await?;
        let mut volumes = volumes.into_iter();
        let volume = volumes.find(|volume| volume.label(labels::UNDELETED) == Some(&key));
        let volume = volume.ok_or_else(|| not_here(error))?;
        if volume.label(labels::TRASHED).is_none() {
            return Ok(self.found(class, volume).into());
        }
        let (this, class, id) = (Arc::clone(self), class.clone(), volume.id);
        self.changes
            .run(vec![LockMode::Exclusive(id)], async move {
                let change = LabelChange::remove(labels::TRASHED);
                let image = class.backend.relabel(id, &change).await?.into_inner();
                Ok(this.found(&class, image).into())
            })
            .await
    }

    /// Destroys a volume in the trash. Idempotent: one that is not there is no error.
    ///
    /// # Errors
    /// `Precondition` if it has snapshots that would be lost with it, or its record cannot be read.
    pub async fn destroy_trashed(self: &Arc<Self>, reference: &Reference) -> Result<()> {
        let place = match self.place(ImageKind::Trash, reference) {
            Ok(place) => place,
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(not_here(error)),
        };
        self.destroy_in_trash(&place.class, place.id).await
    }

    /// Destroys an image in the trash of a class; nothing else can be destroyed by it.
    pub(crate) async fn destroy_in_trash(
        self: &Arc<Self>,
        class: &Class,
        id: ImageId,
    ) -> Result<()> {
        debug_assert!(id.kind == ImageKind::Trash, "{id}");
        let (backend, handle) = (Arc::clone(&class.backend), self.handle_in(class, id));
        self.changes
            .run(vec![LockMode::Exclusive(id)], async move {
                if backend.delete(id).await?.is_made() {
                    tracing::info!(trash.id = %handle, "volume in the trash destroyed");
                }
                Ok(())
            })
            .await
    }
}
