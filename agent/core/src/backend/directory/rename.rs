//! Another identity for an image: its directory is renamed.

use std::fs;

use super::{Inner, record};
use crate::{
    Error, Kind, Result,
    backend::{Change, Image, LabelChange},
    fail,
    types::{ImageId, ImageKind},
};

impl Inner {
    /// Renames an image and changes its labels: those that it gets are set before, so that a repeated call finds it by
    /// them, and those of the trash are removed after, because what is in the trash always has them. A full disk is met
    /// before anything was changed.
    pub(super) fn rename(
        &self,
        from: ImageId,
        to: ImageId,
        change: &LabelChange,
    ) -> Result<Change<Image>> {
        match (self.layout.get(from), self.layout.get(to)) {
            (None, Some(_)) => {
                return Ok(Change::Already(self.relabel(to, change)?.into_inner()));
            }
            (Some(_), Some(_)) => {
                return Err(Error::new(
                    Kind::Conflict,
                    format!("{from} cannot become {to}, which exists"),
                ));
            }
            (_, None) => self.layout.changeable(from)?,
        };
        self.detach(from)?;
        let before = match to.kind {
            ImageKind::Trash => change.clone(),
            _ => LabelChange {
                set: change.set.clone(),
                remove: Vec::new(),
            },
        };
        self.relabel(from, &before)?;
        fail::point("directory.rename.begun");
        let (old, new) = (self.layout.directory(from), self.layout.directory(to));
        fs::rename(&old, &new)
            .map_err(|error| Error::io(format!("could not rename {}", old.display()), error))?;
        fail::point("directory.rename.renamed");
        record::sync_directory(self.layout.kind(to.kind))?;
        record::sync_directory(self.layout.kind(from.kind))?;
        Ok(Change::Made(self.relabel(to, change)?.into_inner()))
    }
}
