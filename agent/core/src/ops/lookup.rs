//! Lookup: from the id of a caller to its image.

use super::{Class, Operations, labels::Read};
use crate::{
    Error, Kind, Result,
    backend::{Fault, Health, Image},
    types::{Capability, Handle, ImageId, ImageKind, Reference},
};

/// An existing image with its location.
#[derive(Debug, Clone)]
pub(crate) struct LocatedImage {
    pub(crate) handle: Handle,
    pub(crate) class: Class,
    pub(crate) image: Image,
}

/// The location of an image that may or may not exist.
#[derive(Debug)]
pub(crate) struct Location {
    pub(crate) handle: Handle,
    pub(crate) class: Class,
    pub(crate) id: ImageId,
}

impl Operations {
    /// The location that an id of this node names.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if no image can have this id, [`Kind::WrongNode`] if it belongs to another node.
    pub(crate) fn place(&self, kind: ImageKind, reference: &Reference) -> Result<Location> {
        let unknown = || Error::not_found(format!("{} {reference} does not exist", kind.word()));
        let handle = reference.handle().ok_or_else(unknown)?;
        if handle.node != self.settings().node {
            return Err(Error::new(
                Kind::WrongNode,
                format!(
                    "{} {reference} is on node {}, this is node {}",
                    kind.word(),
                    handle.node,
                    self.settings().node
                ),
            ));
        }
        let Some(class) = self.classes.get(&handle.class) else {
            if self.classes.now().unread.contains(&handle.class) {
                return Err(Error::new(
                    Kind::Precondition,
                    format!(
                        "class {} is not on this node, and its storage could not be read to see if {} {reference} exists",
                        handle.class,
                        kind.word()
                    ),
                ));
            }
            return Err(unknown());
        };
        let id = ImageId {
            kind,
            key: handle.key,
        };
        Ok(Location {
            handle: handle.clone(),
            class,
            id,
        })
    }

    /// An image of a class of this node.
    pub(crate) fn found(&self, class: &Class, image: Image) -> LocatedImage {
        LocatedImage {
            handle: self.handle_in(class, image.id),
            class: class.clone(),
            image,
        }
    }

    /// The image that an id names.
    ///
    /// # Errors
    /// [`Kind::NotFound`] or [`Kind::WrongNode`].
    pub(crate) async fn find(
        &self,
        kind: ImageKind,
        reference: &Reference,
    ) -> Result<LocatedImage> {
        self.place(kind, reference)?.find().await
    }
}

impl Location {
    /// The image at this location.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub(crate) async fn find(self) -> Result<LocatedImage> {
        match self.class.backend.get(self.id).await? {
            Some(image) => Ok(LocatedImage {
                handle: self.handle,
                class: self.class,
                image,
            }),
            None => Err(Error::not_found(format!(
                "{} {} does not exist",
                self.id.kind.word(),
                self.handle
            ))),
        }
    }
}

impl LocatedImage {
    /// The image, if it is healthy.
    ///
    /// # Errors
    /// [`Kind::Precondition`] naming the damage, [`Kind::Busy`] during a rollback.
    pub(crate) fn healthy(&self) -> Result<&Image> {
        self.check_not_on_its_way()?;
        match &self.image.health {
            Health::Good | Health::Degraded(_) => Ok(&self.image),
            Health::Damaged(fault) | Health::Unreadable(fault) => Err(self.damaged(fault)),
        }
    }

    fn damaged(&self, fault: &Fault) -> Error {
        let kind = self.image.id.kind.word();
        Error::new(
            Kind::Precondition,
            format!("{kind} {} is damaged: {}", self.handle, fault.message),
        )
    }

    /// Refuses capabilities that this volume does not support.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] with the reason.
    pub(crate) fn supports(&self, capabilities: &[Capability]) -> Result<()> {
        match self.image.lacks(capabilities) {
            None => Ok(()),
            Some(why) => Err(Error::unsupported(format!(
                "volume {} does not support the capability: {why}",
                self.handle
            ))),
        }
    }

    /// The image, if its record can be read.
    ///
    /// # Errors
    /// [`Kind::Precondition`] naming the problem of the record.
    pub(crate) fn readable(&self) -> Result<&Image> {
        match &self.image.health {
            Health::Good | Health::Degraded(_) | Health::Damaged(_) => Ok(&self.image),
            Health::Unreadable(fault) => Err(self.damaged(fault)),
        }
    }
}

/// Turns `WrongNode` into `NotFound`: to callers of this node, images of other nodes do not exist.
pub(crate) fn not_here(error: Error) -> Error {
    match error.kind() {
        Kind::WrongNode => Error::not_found(error.to_string()),
        _ => error,
    }
}
