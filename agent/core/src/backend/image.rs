//! Images: data with a size, labels and a state of health. A group is an image without data.

use std::collections::BTreeMap;

use super::Health;
use crate::{
    Error, Kind, Result,
    types::{ImageId, Size},
};

/// The labels that a back end stores with an image. The keys are defined by [`crate::ops`].
pub type Labels = BTreeMap<String, String>;

/// An image as the disk shows it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The image id.
    pub id: ImageId,
    /// Its size in bytes, by its record.
    pub size: Size,
    /// The labels of the image.
    pub labels: Labels,
    /// The health of its data and record.
    pub health: Health,
}

/// The source of an image's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Nothing: it reads as zeros.
    Blank,
    /// The data of another image of the same back end, at one point in time.
    CopyOf(ImageId),
}

/// The specification of an image to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpec {
    /// The image id.
    pub id: ImageId,
    /// Its size in bytes; at least that of its source.
    pub size: Size,
    /// The labels that it is created with.
    pub labels: Labels,
    /// The source of its data.
    pub origin: Origin,
}

impl ImageSpec {
    /// The image that this one is a copy of.
    ///
    /// # Errors
    /// `Bug` when it is not a copy.
    pub(super) fn source(&self) -> Result<ImageId> {
        match self.origin {
            Origin::CopyOf(source) => Ok(source),
            Origin::Blank => Err(Error::new(Kind::Bug, format!("{} is not a copy", self.id))),
        }
    }
}

/// A change of labels, applied atomically.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelChange {
    /// Labels to set.
    pub set: Labels,
    /// Labels to remove.
    pub remove: Vec<String>,
}

impl LabelChange {
    /// Sets one label.
    pub fn set(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            set: Labels::from([(key.into(), value.into())]),
            remove: Vec::new(),
        }
    }

    /// Removes one label.
    pub fn remove(key: impl Into<String>) -> Self {
        Self {
            set: Labels::new(),
            remove: vec![key.into()],
        }
    }

    /// The labels after the change, or none if it changes nothing.
    pub fn apply(&self, labels: &Labels) -> Option<Labels> {
        let mut after = labels.clone();
        for key in &self.remove {
            after.remove(key);
        }
        after.extend(self.set.clone());
        (after != *labels).then_some(after)
    }
}

/// A successful result, and whether this call changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<T> {
    /// This call made the change.
    Made(T),
    /// The change had been made before.
    Already(T),
}

impl<T> Change<T> {
    /// The same change with what `of` makes of its result.
    pub fn map<U>(self, of: impl FnOnce(T) -> U) -> Change<U> {
        match self {
            Self::Made(value) => Change::Made(of(value)),
            Self::Already(value) => Change::Already(of(value)),
        }
    }

    /// The result, regardless of which call made it.
    pub fn into_inner(self) -> T {
        match self {
            Self::Made(value) | Self::Already(value) => value,
        }
    }

    /// Returns true if this call made the change.
    pub fn is_made(&self) -> bool {
        matches!(self, Self::Made(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_labels_that_changes_nothing_is_none() {
        let labels = Labels::from([("a".into(), "1".into())]);
        assert_eq!(LabelChange::set("a", "1").apply(&labels), None);
        assert_eq!(LabelChange::remove("b").apply(&labels), None);
        assert_eq!(LabelChange::remove("a").apply(&labels), Some(Labels::new()));
    }
}
