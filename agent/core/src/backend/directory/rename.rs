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
    /// Renames an image and changes its labels. What is in the trash always has the labels of it: they are set before
    /// and removed after.
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
        if to.kind == ImageKind::Trash {
            self.relabel(from, change)?;
        }
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
