//! Images: bytes with a size, labels and a state of health. A group is one without bytes.

use std::collections::BTreeMap;

use crate::{
    Error, Kind, Result,
    types::{ImageId, Size},
};

/// What a back end keeps beside an image's bytes. The keys belong to [`crate::ops`].
pub type Labels = BTreeMap<String, String>;

/// An image as the disk shows it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Which image.
    pub id: ImageId,
    /// Its size in bytes, by its record.
    pub size: Size,
    /// What is kept beside it.
    pub labels: Labels,
    /// Whether its bytes and record are as they should be.
    pub health: Health,
}

/// Whether an image is as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// All is well.
    Good,
    /// It can be used, but has lost what protects it; the text says what, and what to do.
    Degraded(String),
    /// The record is there, but the bytes are not as it says; the text says how.
    Damaged(String),
    /// The record cannot be read, or is of a newer version; nothing may be changed.
    Unreadable(String),
}

/// What an image is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Nothing: it reads as zeros.
    Blank,
    /// The bytes of another image of the same back end, at one moment.
    CopyOf(ImageId),
}

/// An image to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpec {
    /// Which image.
    pub id: ImageId,
    /// Its size in bytes; at least that of its origin.
    pub size: Size,
    /// Labels that it is born with.
    pub labels: Labels,
    /// What it is made from.
    pub origin: Origin,
}

impl ImageSpec {
    /// The image that this one is to be a copy of.
    ///
    /// # Errors
    /// `Bug` when it is none.
    pub(super) fn source(&self) -> Result<ImageId> {
        match self.origin {
            Origin::CopyOf(source) => Ok(source),
            Origin::Blank => Err(Error::new(Kind::Bug, format!("{} is not a copy", self.id))),
        }
    }
}

/// A change of labels, made in one step.
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

/// A success that says whether anything changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<T> {
    /// This call did it.
    Made(T),
    /// It was so before.
    Already(T),
}

impl<T> Change<T> {
    /// The result, whoever made it.
    pub fn into_inner(self) -> T {
        match self {
            Self::Made(value) | Self::Already(value) => value,
        }
    }

    /// Whether this call did it.
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
