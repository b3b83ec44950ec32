//! Snapshots: read-only point-in-time copies of one volume.

use std::{sync::Arc, time::SystemTime};

use crate::ops::{
    Listing, Operations, PageRequest,
    group_snapshot::Groups,
    labels::{self, Read},
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    parameters,
};
use crate::{
    Error, Kind, Result,
    backend::{Health, ImageSpec, Labels, Origin},
    fail,
    types::{Handle, ImageId, ImageKind, Key, Map, Name, Reference, Requirement, Size},
};

/// A snapshot as recorded on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its handle.
    pub handle: Handle,
    /// The source volume, which may have been deleted since.
    pub of: Option<Handle>,
    /// The size of the source volume at the point in time, in bytes; the minimum size of a copy.
    pub size: Size,
    /// Its point in time.
    pub created: SystemTime,
    /// The reason why no volume can be created from it, if any.
    pub damage: Option<String>,
    /// The group snapshot that it is a member of.
    pub group: Option<Handle>,
}

/// A request to create a snapshot (CSI, `CreateSnapshot`).
#[derive(Debug, Clone)]
pub struct CreateSnapshot {
    /// Its name, the idempotency key.
    pub name: Name,
    /// The source volume.
    pub of: Reference,
    /// The parameters of the call.
    pub parameters: Map,
    /// The topology from which it must be usable.
    pub topology: Requirement,
}

/// Filter of a list of snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotFilter {
    /// This one only.
    pub snapshot: Option<Reference>,
    /// Those of this volume only.
    pub of: Option<Reference>,
}

impl From<LocatedImage> for Snapshot {
    fn from(found: LocatedImage) -> Self {
        Self {
            of: found
                .image
                .label(labels::SNAPSHOT_OF)
                .and_then(Handle::parse),
            size: found.image.size,
            created: found.image.created(),
            damage: match &found.image.health {
                Health::Good | Health::Degraded(_) => None,
                Health::Damaged(fault) | Health::Unreadable(fault) => Some(fault.message.clone()),
            },
            handle: found.handle,
            group: None,
        }
    }
}

/// The labels that every snapshot of a volume has.
pub(crate) fn snapshot_labels(volume: &LocatedImage) -> Labels {
    let mut labels = Labels::from([
        (labels::CREATED.to_owned(), labels::now()),
        (labels::SNAPSHOT_OF.to_owned(), volume.handle.to_string()),
    ]);
    for key in labels::OF_BYTES {
        if let Some(value) = volume.image.label(key) {
            labels.insert(key.to_owned(), value.to_owned());
        }
    }
    labels
}

impl Operations {
    /// Creates a snapshot. Idempotent: an earlier snapshot of this name is returned. A mounted file system is frozen
    /// while its data is copied.
    ///
    /// # Errors
    /// `Invalid`, `NotFound`, `Conflict`, `Busy`, `NoSpace`, `WrongNode`, `Precondition`.
    pub async fn create_snapshot(self: &Arc<Self>, request: CreateSnapshot) -> Result<Snapshot> {
        parameters::check_foreign(&request.parameters)?;
        let kind = ImageKind::Snapshot;
        let id = ImageId {
            kind,
            key: Key::of(kind, &request.name),
        };
        let mut holds = vec![LockMode::Exclusive(id)];
        if let Some(handle) = request.of.handle() {
            holds.push(LockMode::Exclusive(ImageId {
                kind: ImageKind::Volume,
                key: handle.key,
            }));
        }
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move { this.make_snapshot(id, request).await })
            .await
    }

    async fn make_snapshot(
        self: &Arc<Self>,
        id: ImageId,
        request: CreateSnapshot,
    ) -> Result<Snapshot> {
        if !request.topology.is_met_by(&self.settings().node) {
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "accessibility_requirements exclude node {}, on which all snapshots of its volumes are",
                    self.settings().node
                ),
            ));
        }
        // Idempotency: checked before the volume, which may have been deleted since the first call.
        // First in the class of the volume: a class that was away may have a snapshot of the same name.
        let own = request.of.handle().map(|handle| handle.class.clone());
        let own = own.and_then(|own| self.classes.get(&own));
        let own = own.or_else(|| self.classes.iter().next());
        let found = match own {
            Some(own) => self.named(&own, id).await?,
            None => None,
        };
        if let Some(found) = found {
            let of = found.readable()?.label(labels::SNAPSHOT_OF);
            let name = found.image.label(labels::NAME);
            if of != Some(&request.of.to_string()) || name != Some(request.name.as_str()) {
                return Err(Error::new(
                    Kind::Conflict,
                    format!(
                        "snapshot {:?} already exists, of volume {}; choose another name",
                        request.name.as_str(),
                        of.unwrap_or("unknown")
                    ),
                ));
            }
            return Ok(found.into());
        }
        let volume = self.find(ImageKind::Volume, &request.of).await?;
        let image = volume.healthy()?;
        let mut labels = snapshot_labels(&volume);
        labels.extend([
            (labels::NAME.to_owned(), request.name.to_string()),
            (
                labels::PARAMETERS.to_owned(),
                labels::json(&request.parameters)?,
            ),
        ]);
        let spec = ImageSpec {
            id,
            size: image.size,
            labels,
            origin: Origin::CopyOf(image.id),
        };
        let create = || volume.class.backend.create(&spec);
        let made = self.with_room(&volume.class, image.size, create).await?;
        let made = made.into_inner();
        self.known.insert(&volume.class, id);
        fail::point("create-snapshot.made");
        let handle = self.handle_in(&volume.class, id);
        tracing::info!(snapshot.id = %handle, volume.id = %volume.handle, "snapshot created");
        Ok(LocatedImage {
            handle,
            class: volume.class,
            image: made,
        }
        .into())
    }

    pub(crate) fn handle_in(&self, class: &crate::ops::Class, id: ImageId) -> Handle {
        Handle {
            node: self.settings().node.clone(),
            class: class.name.clone(),
            key: id.key,
        }
    }

    /// Deletes a snapshot. Idempotent: one that does not exist is no error.
    ///
    /// # Errors
    /// `NotFound` for one of another node, `Busy` while a volume is created from it, `InUse` while it is mounted,
    /// `Invalid` if it is a member of a group snapshot, which is only deleted as a whole.
    pub async fn delete_snapshot(self: &Arc<Self>, reference: &Reference) -> Result<()> {
        let place = match self.place(ImageKind::Snapshot, reference) {
            Ok(place) => place,
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(not_here(error)),
        };
        let holds = vec![LockMode::Exclusive(place.id)];
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                let Some(image) = place.class.backend.get(place.id).await? else {
                    // An incomplete image is invisible to callers but takes space.
                    return place.class.backend.delete(place.id).await.map(drop);
                };
                let found = LocatedImage {
                    handle: place.handle,
                    class: place.class,
                    image,
                };
                found.readable()?;
                this.check_in_no_group_snapshot(&found).await?;
                found.check_unmounted().await?;
                found.class.backend.delete(place.id).await?;
                this.known.remove(&found.class, place.id);
                tracing::info!(snapshot.id = %found.handle, "snapshot deleted");
                Ok(())
            })
            .await
    }

    /// One snapshot.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn get_snapshot(&self, reference: &Reference) -> Result<Snapshot> {
        let (found, groups) = self.find_shown(reference).await.map_err(not_here)?;
        Ok(groups.snapshot(found))
    }

    /// The snapshot that an id names. A member of a group snapshot exists for callers once the group snapshot is
    /// complete.
    ///
    /// # Errors
    /// [`Kind::NotFound`] or [`Kind::WrongNode`].
    pub(crate) async fn find_snapshot(&self, reference: &Reference) -> Result<LocatedImage> {
        self.find_shown(reference).await.map(|(found, _)| found)
    }

    /// Like [`Self::find_snapshot`], with the group snapshot that it is a member of.
    async fn find_shown(&self, reference: &Reference) -> Result<(LocatedImage, Groups)> {
        let found = self.find(ImageKind::Snapshot, reference).await?;
        let groups = self.groups_of(std::slice::from_ref(&found)).await?;
        if self.shows(&groups, &found).await? {
            return Ok((found, groups));
        }
        Err(Error::not_found(format!(
            "snapshot {reference} does not exist"
        )))
    }

    /// Refuses to delete a member of a group snapshot alone.
    async fn check_in_no_group_snapshot(&self, snapshot: &LocatedImage) -> Result<()> {
        let groups = self.groups_of(std::slice::from_ref(snapshot)).await?;
        match groups.of(snapshot) {
            None => Ok(()),
            Some(group) if group.image.label(labels::STATE).is_some() => Err(Error::new(
                Kind::Busy,
                format!(
                    "snapshot {} is a member of group snapshot {}, which is being deleted; repeat the call later",
                    snapshot.handle, group.handle
                ),
            )),
            Some(group) => Err(Error::invalid(format!(
                "snapshot {} is a member of group snapshot {}; delete the group snapshot instead",
                snapshot.handle, group.handle
            ))),
        }
    }

    /// The snapshots of the class of a volume, whose snapshots are all there; else those of every class.
    async fn snapshots_in_class_of(&self, volume: Option<&Reference>) -> Result<Vec<LocatedImage>> {
        let kind = ImageKind::Snapshot;
        let named = volume.and_then(Reference::handle);
        // The records of a class that was renamed have its former name.
        let class = named.and_then(|handle| self.classes.get(&handle.class));
        match class {
            Some(class) => {
                let images = class.list(kind).await?;
                self.known.replace(&class, kind, &images);
                Ok(images
                    .into_iter()
                    .map(|image| self.found(&class, image))
                    .collect())
            }
            None => self.everything(kind).await,
        }
    }

    /// Lists snapshots in pages. An unknown id, or one of another node, gives an empty list.
    ///
    /// # Errors
    /// `StaleToken`.
    pub async fn list_snapshots(
        &self,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Listing<Snapshot>> {
        let mut all = match &filter.snapshot {
            Some(reference) => match self.find_snapshot(reference).await {
                Ok(found) => vec![found],
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::WrongNode) => {
                    Vec::new()
                }
                Err(error) => return Err(error),
            },
            None => self.snapshots_in_class_of(filter.of.as_ref()).await?,
        };
        if let Some(of) = &filter.of {
            let of = of.to_string();
            all.retain(|found| found.image.label(labels::SNAPSHOT_OF) == Some(of.as_str()));
        }
        let groups = self.groups_of(&all).await?;
        let mut shown = Vec::with_capacity(all.len());
        for found in all {
            if self.shows(&groups, &found).await? {
                shown.push(found);
            }
        }
        all = shown;
        Ok(page.cut(all)?.map(|found| groups.snapshot(found)))
    }
}
