//! The images of each class as they were last seen: names must not be used twice while a class cannot be read.
//!
//! A class that could not be read since the agent started is not known. Its names may be used by other classes, because
//! one lost disk must not stop the calls for all others; when it returns, each class answers for its own images.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use crate::{
    Error, Result,
    backend::Image,
    host::lock,
    ops::Class,
    types::{ClassName, ImageId, ImageKind},
};

/// The ids of all images of the classes that were read, 24 bytes each.
#[derive(Debug, Default)]
pub(crate) struct KnownImages(Mutex<BTreeMap<ClassName, BTreeSet<ImageId>>>);

impl KnownImages {
    /// All images of one kind of a class, in the order of their ids.
    pub(crate) fn replace(&self, class: &Class, kind: ImageKind, images: &[Image]) {
        let mut known = lock(&self.0);
        let ids = known.entry(class.name.clone()).or_default();
        // Most lists are the same as the one before.
        let of_kind = ids.iter().filter(|id| id.kind == kind);
        if of_kind.copied().eq(images.iter().map(|image| image.id)) {
            return;
        }
        ids.retain(|id| id.kind != kind);
        ids.extend(images.iter().map(|image| image.id));
    }

    /// A new image.
    pub(crate) fn insert(&self, class: &Class, id: ImageId) {
        let mut known = lock(&self.0);
        known.entry(class.name.clone()).or_default().insert(id);
    }

    /// A deleted image.
    pub(crate) fn remove(&self, class: &Class, id: ImageId) {
        if let Some(ids) = lock(&self.0).get_mut(&class.name) {
            ids.remove(&id);
        }
    }

    /// A class that is there no more.
    pub(crate) fn forget(&self, class: &Class) {
        lock(&self.0).remove(&class.name);
    }

    /// All known images of one kind of a class.
    pub(crate) fn of(&self, class: &Class, kind: ImageKind) -> Vec<ImageId> {
        let known = lock(&self.0);
        let ids = known.get(&class.name).into_iter().flatten();
        ids.copied().filter(|id| id.kind == kind).collect()
    }

    /// Returns true if the image was there when its class was last read.
    pub(crate) fn has(&self, class: &Class, id: ImageId) -> bool {
        lock(&self.0)
            .get(&class.name)
            .is_some_and(|ids| ids.contains(&id))
    }

    /// Refuses a name that an image of a class has which cannot be read now, for `error`.
    ///
    /// # Errors
    /// As `error`, naming the class.
    pub(crate) fn check_unused(&self, class: &Class, id: ImageId, error: Error) -> Result<()> {
        if !self.has(class, id) {
            return Ok(());
        }
        Err(Error::new(
            error.kind(),
            format!(
                "a {} of this name exists in class {}, which cannot be read now; choose another name, or repeat the call when it is available",
                id.kind.word(),
                class.name
            ),
        )
        .because(error))
    }
}
