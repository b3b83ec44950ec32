//! What is in the directory of a class, read without its lock: nothing is undone, adopted or created.

use std::path::{Path, PathBuf};

use super::{
    adopt_node::owner_of,
    layout::{Layout, TemporaryPrefix},
};
use crate::{
    Result,
    backend::Image,
    types::{ImageId, ImageKind},
};

/// What is in the directory of a class.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// The node that its marker names, if it has one.
    pub owner: Option<String>,
    /// All images, with the health that their records and files show.
    pub images: Vec<SurveyedImage>,
    /// What a change has begun and not ended.
    pub leftovers: Vec<Leftover>,
}

/// An image.
#[derive(Debug, Clone)]
pub struct SurveyedImage {
    /// As its record and its file show it.
    pub image: Image,
    /// The directory that has its files.
    pub home: PathBuf,
    /// The file with its data; for a group there is none.
    pub file: PathBuf,
}

/// A file or directory of a change that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Where it is.
    pub path: PathBuf,
    /// The image that it is about.
    pub id: ImageId,
    /// What it is.
    pub kind: LeftoverKind,
}

/// The kinds of leftovers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftoverKind {
    /// An image that is being created.
    Making,
    /// An image that is being deleted.
    Deleting,
    /// A new record, or new data, of an image that exists.
    Replacement,
    /// The marker of a file system that is frozen for a copy.
    Frozen,
    /// An image file of others that is being adopted.
    Adopting,
    /// An image whose file is being handed over.
    Releasing,
}

impl From<TemporaryPrefix> for LeftoverKind {
    fn from(prefix: TemporaryPrefix) -> Self {
        match prefix {
            TemporaryPrefix::Making => Self::Making,
            TemporaryPrefix::Deleting => Self::Deleting,
            TemporaryPrefix::Record | TemporaryPrefix::Image => Self::Replacement,
            TemporaryPrefix::Frozen => Self::Frozen,
            TemporaryPrefix::Adopting => Self::Adopting,
            TemporaryPrefix::Releasing => Self::Releasing,
        }
    }
}

/// Reads the directory of a class.
///
/// # Errors
/// `Io` when a directory in it cannot be read; one that does not exist is empty.
pub fn survey(path: &Path) -> Result<Survey> {
    let layout = Layout::new(path);
    let mut survey = Survey {
        owner: owner_of(path)?,
        ..Survey::default()
    };
    for kind in ImageKind::ALL {
        if !layout.kind(kind).exists() {
            continue;
        }
        survey
            .images
            .extend(layout.list(kind)?.into_iter().map(|image| SurveyedImage {
                home: layout.directory(image.id),
                file: layout.image(image.id),
                image,
            }));
        let leftovers = layout.all_passing(kind)?.into_iter();
        survey
            .leftovers
            .extend(leftovers.map(|(prefix, id, path)| Leftover {
                path,
                id,
                kind: prefix.into(),
            }));
    }
    Ok(survey)
}
