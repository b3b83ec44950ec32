//! Rollback of a volume to one of its snapshots, while it is not in use.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use super::{Allocation, Inner, group_snapshot::CopyMethod, layout::TemporaryPrefix, record};
use crate::{
    Error, Kind, Result,
    backend::{ImageSpec, Labels, Origin},
    fail,
    host::fsync,
    types::{ImageId, Size},
};

impl Inner {
    /// Refuses a rollback that is not possible, or that has no space for the new data beside the old.
    pub(super) fn check_rollback(&self, pairs: &[(ImageId, ImageId)]) -> Result<()> {
        let method = self.copy_method()?;
        let is_thick = self.settings.allocation == Allocation::Thick;
        let (mut taken, mut most) = (0_i128, 0_i128);
        for (id, from) in pairs {
            let volume = self.layout.usable(*id)?;
            let moment = self.layout.usable(*from)?;
            if moment.size > volume.size {
                return Err(Error::new(
                    Kind::Precondition,
                    format!(
                        "cannot roll back {id} to {from}: the volume was created anew after the snapshot"
                    ),
                ));
            }
            if !self.devices(*id)?.is_empty() {
                return Err(Error::new(
                    Kind::InUse,
                    format!("{id} is attached to a device; unpublish and unstage it first"),
                ));
            }
            // They are replaced one after the other, each when its new data is complete.
            let (old, new) = (self.blocks(*id)?, self.blocks(*from)?);
            let new = if is_thick {
                volume.size.bytes().into()
            } else {
                new
            };
            most = most.max(taken + new);
            taken += new - old;
        }
        if method == CopyMethod::Blocks
            && let Ok(most) = u64::try_from(most)
        {
            self.check_room(Size::try_from(most)?)?;
        }
        Ok(())
    }

    /// The bytes that an image uses in its file system.
    fn blocks(&self, id: ImageId) -> Result<i128> {
        let path = self.layout.image(id);
        let image = fs::metadata(&path);
        let image = image.map_err(|error| failed(&path, error))?;
        Ok(i128::from(image.blocks()) * 512)
    }

    /// Replaces the data of a volume by that of a snapshot, atomically.
    pub(super) fn roll_back(&self, id: ImageId, from: ImageId) -> Result<()> {
        let volume = self.layout.usable(id)?;
        self.layout.usable(from)?;
        // A device that stays attached would still show the old data.
        self.detach(id)?;
        let passing = self.layout.passing(TemporaryPrefix::Image, id);
        let there = self.layout.image(id);
        let spec = ImageSpec {
            id,
            size: volume.size,
            labels: Labels::new(),
            origin: Origin::CopyOf(from),
        };
        let given = self.fill_passing(&passing, &spec).and_then(|()| {
            fail::point("directory.rollback.filled");
            fs::rename(&passing, &there).map_err(|error| failed(&there, error))
        });
        if let Err(error) = given {
            let _ = fs::remove_file(&passing);
            return Err(error);
        }
        fail::point("directory.rollback.renamed");
        record::sync_directory(&self.layout.directory(id))
    }

    fn fill_passing(&self, passing: &Path, spec: &ImageSpec) -> Result<()> {
        let source = self.layout.image(spec.source()?);
        let from = File::open(&source).map_err(|error| failed(&source, error))?;
        match fs::remove_file(passing) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(passing, error));
            }
            _ => {}
        }
        let target = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(passing)
            .map_err(|error| failed(passing, error))?;
        self.copy_bytes(&from, &target, spec, || Ok(()))?;
        self.set_length(&target, spec.id, spec.size)?;
        fsync(&target).map_err(|error| failed(passing, error))
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::io(
        format!("could not roll back with {}", path.display()),
        error,
    )
}
