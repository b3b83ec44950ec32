//! Whose directory it is: the ids of what it holds begin with the node that made it. One that came from another node, or
//! from this one under a former name, is taken over when the administrator says so.

use std::{collections::BTreeSet, fs, io};

use serde::{Deserialize, Serialize};

use super::{Inner, record};
use crate::{
    Error, Kind, Result,
    backend::Health,
    fail,
    types::{ImageKind, NodeName},
};

/// The form of mark that this agent writes. A higher one is left alone.
const VERSION: u32 = 1;
/// What a mark is called.
const MARK: &str = "node.json";
/// A mark on its way there.
const PASSING: &str = ".node.json";

/// What a directory says of the node that it belongs to.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    version: u32,
    node: String,
}

/// Whose a directory is that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Belongs {
    /// It is this node's.
    Here,
    /// It says nothing of another one, or has nothing.
    Nowhere,
    /// It is another node's, and is to be taken over.
    To(NodeName),
}

impl Inner {
    /// Whose the directory is.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when it is another node's and nobody said that it is to be taken over.
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

    /// Makes it this node's, with all that the labels of its images say of the other one. The mark comes last, so that one
    /// that was interrupted goes on with the rest.
    ///
    /// # Errors
    /// `Io`; what was taken over stays so.
    pub(super) fn take_over(&self, belongs: &Belongs) -> Result<()> {
        let from = match belongs {
            Belongs::Here => return Ok(()),
            Belongs::Nowhere => {
                // A full disk must not keep anybody from what is on it.
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

    fn mark(&self) -> Result<Option<String>> {
        let path = self.settings.path.join(MARK);
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

    /// The node whose ids are in the labels of images, where there is one: of a directory that has lost its mark.
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
