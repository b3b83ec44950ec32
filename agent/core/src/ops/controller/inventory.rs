//! Inventory: all objects of all classes with their owners, for callers whose state was lost.

use std::{sync::Arc, time::SystemTime};

use crate::ops::{
    Class, Listing, Operations, PageRequest,
    labels::{self, Read},
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    parameters,
};
use crate::{
    Kind, Result,
    backend::{Image, LabelChange},
    fail,
    types::{ClassName, Handle, ImageKind, Map, Reference, Size, SnapshotUuid},
};

/// An object of the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its kind.
    pub kind: ImageKind,
    /// Its handle.
    pub handle: Handle,
    /// The name that it was created with.
    pub name: String,
    /// The parameters that it was created with, and those that describe its owner.
    pub parameters: Map,
    /// Its size in bytes; 0 for groups and group snapshots.
    pub size: Size,
    /// Its creation time; the point in time of a snapshot.
    pub created: SystemTime,
    /// The member volumes of a group; the source volumes of a snapshot.
    pub volumes: Vec<Handle>,
    /// The group snapshot that it is a member of.
    pub group_snapshot: Option<Handle>,
    /// A description of what is wrong with it.
    pub problem: Option<String>,
    /// The UUID of a snapshot, unless its record cannot be read.
    pub uuid: Option<SnapshotUuid>,
    /// True for a volume that holds no data: created blank for a file system, and never formatted.
    pub is_blank: bool,
    /// True for a volume whose deletion moves it to the trash of its class.
    pub goes_to_trash: bool,
    /// The group snapshot of the rollback whose previous contents it keeps.
    pub before_rollback_to: Option<Handle>,
}

/// A page of the inventory, and the classes that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// The page.
    pub page: Listing<Object>,
    /// The classes that could not be read, each with the reason.
    pub unreadable: Vec<(ClassName, String)>,
}

impl From<LocatedImage> for Object {
    fn from(found: LocatedImage) -> Self {
        let (node, image) = (&found.handle.node, &found.image);
        let shown = image.label(labels::SNAPSHOT_OF).and_then(Handle::parse);
        let held = found.members().into_iter().map(|member| Handle {
            node: node.clone(),
            class: member.class,
            key: member.key,
        });
        let placed = |label| {
            let place = image.label(label)?;
            Handle::parse(&format!("{node}/{place}"))
        };
        let created = image
            .recorded_time()
            .filter(|_| image.id.kind == ImageKind::Snapshot);
        Self {
            kind: image.id.kind,
            name: image.label(labels::NAME).unwrap_or_default().to_owned(),
            parameters: image.parameters(),
            size: image.size,
            created: image.created(),
            volumes: shown.into_iter().chain(held).collect(),
            group_snapshot: placed(labels::GROUP),
            before_rollback_to: placed(labels::BEFORE),
            problem: image.health.fault().map(|fault| fault.message.clone()),
            is_blank: image.is_blank(),
            goes_to_trash: found.goes_to_trash(),
            uuid: created.map(|created| SnapshotUuid::of(&found.handle, created)),
            handle: found.handle,
        }
    }
}

impl Operations {
    /// Lists the objects of all kinds, in pages. A class that cannot be read is reported and does not hide the others.
    ///
    /// # Errors
    /// `StaleToken`.
    pub async fn list_objects(&self, page: &PageRequest) -> Result<Inventory> {
        let mut all = Vec::new();
        let mut unreadable = Vec::new();
        for (class, images) in self.of_each_class(read).await {
            match images {
                Ok(images) => all.extend(images.into_iter().map(|image| self.found(&class, image))),
                Err(error) => unreadable.push((class.name.clone(), error.chain())),
            }
        }
        // Incomplete or deleting group snapshots and their members are not listed.
        let partial: Vec<String> = all.iter().filter_map(LocatedImage::partial_group).collect();
        let is_whole = |found: &LocatedImage| match found.image.label(labels::GROUP) {
            Some(group) => !partial.iter().any(|partial| partial == group),
            None => found.partial_group().is_none(),
        };
        all.retain(is_whole);
        let page = page.cut(all)?.map(Object::from);
        Ok(Inventory { page, unreadable })
    }

    /// The object with this handle, of any kind.
    ///
    /// # Errors
    /// Errors of its class, if it cannot be read.
    pub async fn get_object(&self, reference: &Reference) -> Result<Option<Object>> {
        for kind in ImageKind::LISTED {
            match self.find(kind, reference).await {
                Ok(found) if found.partial_group().is_some() => return Ok(None),
                Ok(found) => return Ok(Some(found.into())),
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::WrongNode) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Sets the owner of an object: `owner` replaces all parameters that describe the owner.
    ///
    /// # Errors
    /// `Invalid` naming a parameter that does not describe an owner, `NotFound`, `Busy`, `Precondition`.
    pub async fn set_owner(
        self: &Arc<Self>,
        kind: ImageKind,
        reference: &Reference,
        owner: Map,
    ) -> Result<()> {
        parameters::check_owner(&owner)?;
        let place = self.place(kind, reference).map_err(not_here)?;
        let holds = vec![LockMode::Exclusive(place.id)];
        self.changes
            .run(holds, async move {
                let found = place.find().await?;
                let image = found.readable()?;
                let parameters = parameters::owned(&image.parameters(), owner);
                let mut change = LabelChange::default();
                let text = labels::json(&parameters)?;
                change.set.insert(labels::PARAMETERS.to_owned(), text);
                if change.apply(&image.labels).is_some() {
                    found.class.backend.relabel(image.id, &change).await?;
                    fail::point("set-owner.written");
                    tracing::info!(object = %found.handle, kind = kind.word(), "owner changed");
                }
                Ok(())
            })
            .await
    }
}

/// All images of a class.
async fn read(class: Class) -> Result<Vec<Image>> {
    let mut images = Vec::new();
    for kind in ImageKind::LISTED {
        images.extend(class.backend.list(kind).await?);
    }
    Ok(images)
}

impl LocatedImage {
    /// The `<class>/<key>` of a group snapshot that is incomplete or being deleted.
    fn partial_group(&self) -> Option<String> {
        let is_partial = self.image.id.kind == ImageKind::GroupSnapshot
            && self.image.label(labels::STATE).is_some();
        is_partial.then(|| format!("{}/{}", self.class.name, self.image.id.key))
    }
}
