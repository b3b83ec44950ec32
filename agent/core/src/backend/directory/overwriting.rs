//! Giving a volume back the bytes of one of its snapshots, while nobody uses it.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use super::{Inner, layout::Passing, record};
use crate::{
    Error, Kind, Result,
    backend::{ImageSpec, Labels, Origin},
    fail,
    types::{ImageId, Size},
};

impl Inner {
    /// Refuses what cannot be given back, or has no room beside what is there until then.
    pub(super) fn check_give_back(&self, pairs: &[(ImageId, ImageId)]) -> Result<()> {
        let mut largest = 0;
        for (id, from) in pairs {
            let volume = self.layout.usable(*id)?;
            let moment = self.layout.usable(*from)?;
            if moment.size > volume.size {
                return Err(Error::new(
                    Kind::Precondition,
                    format!("{from} shows no volume that could be {id}: that was made anew since"),
                ));
            }
            self.detach(*id)?;
            let path = self.layout.image(*from);
            let image = fs::metadata(&path);
            let image = image.map_err(|error| failed(&path, error))?;
            // They are replaced one after the other.
            largest = largest.max(image.blocks() * 512);
        }
        if self.must_copy()? {
            self.check_room(Size::try_from(largest)?)?;
        }
        Ok(())
    }

    /// Replaces the bytes of a volume by those of a snapshot, in one step.
    pub(super) fn give_back(&self, id: ImageId, from: ImageId) -> Result<()> {
        let volume = self.layout.usable(id)?;
        self.layout.usable(from)?;
        // A device that stays would go on showing the old bytes.
        self.detach(id)?;
        let passing = self.layout.passing(Passing::Image, id);
        let there = self.layout.image(id);
        let spec = ImageSpec {
            id,
            size: volume.size,
            labels: Labels::new(),
            origin: Origin::CopyOf(from),
        };
        let given = self.fill_passing(&passing, &spec).and_then(|()| {
            fail::point("directory.give-back.filled");
            fs::rename(&passing, &there).map_err(|error| failed(&there, error))
        });
        if let Err(error) = given {
            let _ = fs::remove_file(&passing);
            return Err(error);
        }
        fail::point("directory.give-back.renamed");
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
        self.copy_bytes(&from, &target, spec)?;
        self.set_length(&target, spec.id, spec.size)?;
        target.sync_all().map_err(|error| failed(passing, error))
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::io(
        format!("could not roll back with {}", path.display()),
        error,
    )
}
