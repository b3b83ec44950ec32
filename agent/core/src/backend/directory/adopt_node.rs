//! Ownership of the directory: the ids of its images begin with the node that created them. A directory of another
//! node, or of this node under a former name, is adopted when the administrator configures it.

use std::{collections::BTreeSet, fs, io, path::Path};

use serde::{Deserialize, Serialize};

use super::{Inner, record};
use crate::{
    Error, Kind, Result,
    backend::Health,
    fail,
    types::{ImageKind, NodeName},
};

/// The version of the marker that this agent writes. A newer one is left unchanged.
const VERSION: u32 = 1;
/// The file name of the marker.
const MARK: &str = "node.json";
/// The temporary name of a marker that is being written.
const PASSING: &str = ".node.json";

/// The marker: names the node that a directory belongs to.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    version: u32,
    node: String,
}

/// The owner of a directory that this node may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Belongs {
    /// This node.
    Here,
    /// No node: it has no marker and no images of another one.
    Nowhere,
    /// Another node, whose images are to be adopted.
    To(NodeName),
}

impl Inner {
    /// Determines the owner of the directory.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when it belongs to another node and adoption is not configured.
    pub(super) fn belongs(&self) -> Result<Belongs> {
        let here = &self.settings.node;
        let mark = self.mark()?;
        if mark.as_deref() == Some(here.as_str()) {
            return Ok(Belongs::Here);
        }
        let named = match mark {
            Some(named) => Some(named),
            None => self.named_by_images()?,
        };
        let Some(named) = named.filter(|named| named != here.as_str()) else {
            return Ok(Belongs::Nowhere);
        };
        if let Some(from) = self.settings.adoption.node(&named) {
            return Ok(Belongs::To(from.clone()));
        }
        if self.is_empty()? {
            return Ok(Belongs::Nowhere);
        }
        Err(Error::new(
            Kind::Precondition,
            format!(
                "directory {path} belongs to node {named}, but this node is {here}; to adopt its images, set `adoptNode: {named}` beside its path or start the agent with `--adopt-node {named}`; if this is the same node, restore its name (`--node {named}`)",
                path = self.settings.path.display()
            ),
        ))
    }

    /// Adopts the directory for this node, including every label that names the other node. The marker is written
    /// last, so that an interrupted adoption continues with the rest.
    ///
    /// # Errors
    /// `Io`; images that were adopted already stay adopted.
    pub(super) fn take_over(&self, belongs: &Belongs) -> Result<()> {
        let from = match belongs {
            Belongs::Here => return Ok(()),
            Belongs::Nowhere => {
                // A full disk must not make the existing images unusable.
                if let Err(error) = self.write_mark() {
                    tracing::warn!(directory = %self.settings.path.display(), error = %error, "directory not marked as owned by this node");
                }
                return Ok(());
            }
            Belongs::To(from) => from,
        };
        let here = &self.settings.node;
        for kind in ImageKind::ALL {
            for image in self.layout.list(kind)? {
                if matches!(image.health, Health::Unreadable(_)) {
                    tracing::warn!(object = %image.id, from = %from, "image with an unreadable record adopted unchanged");
                    continue;
                }
                let change = (self.settings.adoption.labels)(&image.labels, from, here);
                self.relabel(image.id, &change)?;
            }
        }
        fail::point("adopting.relabelled");
        self.write_mark()?;
        tracing::info!(directory = %self.settings.path.display(), from = %from, "images of another node adopted");
        Ok(())
    }

    /// Returns true if nothing in the directory is of an agent, neither a marker nor a place for images.
    pub(super) fn is_bare(&self) -> Result<bool> {
        let mut kinds = ImageKind::ALL.into_iter();
        Ok(self.mark()?.is_none() && !kinds.any(|kind| self.layout.kind(kind).exists()))
    }

    fn mark(&self) -> Result<Option<String>> {
        owner_of(&self.settings.path)
    }

    /// The node whose ids are in the labels of images, if any: for a directory that has lost its marker.
    fn named_by_images(&self) -> Result<Option<String>> {
        let mut named = BTreeSet::new();
        for kind in ImageKind::ALL {
            if !self.layout.kind(kind).exists() {
                continue;
            }
            let images = self.layout.list(kind)?;
            let nodes = images
                .iter()
                .filter_map(|image| (self.settings.adoption.node_of)(&image.labels));
            named.extend(nodes.map(|node| node.as_str().to_owned()));
        }
        Ok(named.pop_first().filter(|_| named.is_empty()))
    }

    fn is_empty(&self) -> Result<bool> {
        for kind in ImageKind::ALL {
            if self.layout.kind(kind).exists() && !self.layout.keys(kind)?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn write_mark(&self) -> Result<()> {
        let home = &self.settings.path;
        let (passing, there) = (home.join(PASSING), home.join(MARK));
        let mark = Mark {
            version: VERSION,
            node: self.settings.node.as_str().to_owned(),
        };
        record::write_json(&mark, &passing)?;
        fs::rename(&passing, &there)
            .map_err(|error| Error::io(format!("could not write {}", there.display()), error))?;
        record::sync_directory(home)
    }
}

/// The node that the marker of a directory names; none where it has no marker.
///
/// # Errors
/// [`Kind::Precondition`] when the marker cannot be read.
pub(super) fn owner_of(directory: &Path) -> Result<Option<String>> {
    let path = directory.join(MARK);
    let unusable = |why: String| {
        Error::new(
            Kind::Precondition,
            format!(
                "{} {why}, so the node that owns the images in this directory is unknown; repair the file, or remove it if the images belong to this node",
                path.display()
            ),
        )
    };
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable("cannot be read".to_owned()).because(error)),
    };
    match serde_json::from_slice::<Mark>(&bytes) {
        Ok(mark) if mark.version == VERSION => Ok(Some(mark.node)),
        Ok(mark) => Err(unusable(format!(
            "has version {}, but this agent supports version {VERSION}",
            mark.version
        ))),
        Err(error) => Err(unusable(format!("cannot be parsed: {error}"))),
    }
}
