//! Creating, growing, relabelling and deleting images.
//!
//! Files that are synced (`fsync(2)`), so that acknowledged changes survive a power cut:
//! - the record of a new image, and its data, before the rename that makes it visible. Otherwise the rename could be
//!   on the disk without the contents of the files; the data of a blank image matters for its length. Both are written
//!   before either is synced: one journal commit covers both, and the second sync only waits for the disk. This also
//!   brings the names of the two files to the disk: ext4, xfs, btrfs and f2fs commit the name of a new file with its
//!   first sync, so that the new directory itself needs none. (A group has only a record.)
//! - the directory of all images after that rename, and after the rename that begins a deletion. Otherwise an
//!   acknowledged volume could be missing, or a deleted one could reappear. Removals after that rename need no sync:
//!   the next start repeats them.
//! - a grown image before its new record, the record before the rename that replaces the old one, and its directory
//!   after it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use super::{
    Allocation, Inner,
    layout::TemporaryPrefix,
    record::{self, Record},
};
use crate::{
    Error, Kind, Result,
    backend::{Change, Image, ImageSpec, LabelChange, Origin, encrypted::header_of},
    fail,
    host::{copy, fsync, loop_device, luks},
    types::{ImageId, ImageKind, Size},
};

impl Inner {
    /// Creates an image completely: filled under a temporary name, synced, renamed.
    pub(super) fn create(&self, spec: &ImageSpec) -> Result<Change<Image>> {
        if let Some(image) = self.layout.get(spec.id) {
            return Ok(Change::Already(image));
        }
        // For a snapshot that begins blank, this was checked with the other members of its group snapshot.
        if spec.origin == Origin::Blank && spec.id.kind != ImageKind::Snapshot {
            self.check_room(spec.size)?;
        }
        let making = self.layout.passing(TemporaryPrefix::Making, spec.id);
        let made = self.fill(&making, spec).and_then(|()| {
            fail::point("directory.create.filled");
            let there = self.layout.directory(spec.id);
            fs::rename(&making, &there)
                .map_err(|error| Error::io(format!("could not rename {}", making.display()), error))
        });
        if let Err(error) = made {
            return Err(undo(&making, error));
        }
        fail::point("directory.create.renamed");
        record::sync_directory(self.layout.kind(spec.id.kind))?;
        Ok(Change::Made(self.layout.usable(spec.id)?))
    }

    pub(super) fn check_room(&self, size: Size) -> Result<()> {
        let room = self.capacity()?.largest;
        if size <= room {
            return Ok(());
        }
        Err(Error::new(
            Kind::NoSpace,
            format!(
                "{} has {room} of free space, but {size} are needed",
                self.settings.path.display()
            ),
        ))
    }

    fn fill(&self, making: &Path, spec: &ImageSpec) -> Result<()> {
        make_anew(making)?;
        fail::point("directory.create.begun");
        let has_bytes = spec.id.kind.has_bytes();
        let image = has_bytes.then(|| self.fill_image(making, spec));
        let image = image.transpose()?;
        // Both files are written before either is synced: one journal commit covers both.
        Record::new(spec.size, spec.labels.clone()).write(&making.join("record.json"))?;
        fail::point("directory.create.record");
        if let Some(image) = image {
            let synced = fsync(&image);
            synced.map_err(|error| {
                Error::io(
                    format!("could not sync the image in {}", making.display()),
                    error,
                )
            })?;
        }
        Ok(())
    }

    /// Creates the data, without syncing it.
    fn fill_image(&self, making: &Path, spec: &ImageSpec) -> Result<File> {
        let path = making.join("image");
        let failed = |error: io::Error| {
            Error::io(format!("could not create image {}", path.display()), error)
        };
        let image = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        if let Origin::CopyOf(source) = spec.origin {
            self.copy(source, &image, spec)?;
        }
        self.set_length(&image, spec.id, spec.size)?;
        fail::point("directory.create.image");
        Ok(image)
    }

    /// Sets the length of an image's file, with its blocks reserved if the class is configured to.
    pub(super) fn set_length(&self, image: &File, id: ImageId, size: Size) -> Result<()> {
        if self.settings.allocation == Allocation::Thick && id.kind == ImageKind::Volume {
            copy::preallocate(image, size.bytes())?;
        }
        image
            .set_len(size.bytes())
            .map_err(|error| Error::io(format!("could not resize {id} to {size}"), error))
    }

    /// Grows the file, then the record, then the devices. A growth that is interrupted after the first step counts as
    /// complete.
    pub(super) fn grow(&self, id: ImageId, to: Size) -> Result<Change<Image>> {
        let before = self.layout.usable(id)?;
        let path = self.layout.image(id);
        if to > before.size {
            let image = OpenOptions::new().write(true).open(&path);
            let image = image
                .map_err(|error| Error::io(format!("could not open {}", path.display()), error))?;
            if self.settings.allocation == Allocation::Thin {
                self.check_room(Size::try_from(to.bytes() - before.size.bytes())?)?;
            }
            let grown = self.set_length(&image, id, to).and_then(|()| {
                fsync(&image)
                    .map_err(|error| Error::io(format!("could not sync {}", path.display()), error))
            });
            if let Err(error) = grown {
                // The new length is not visible yet.
                let _ = image.set_len(before.size.bytes());
                return Err(error);
            }
            fail::point("directory.grow.image");
        }
        let image = self.layout.usable(id)?;
        let recorded = Record::read(&self.layout.record(id));
        if !matches!(recorded, Ok(Some(Ok(record))) if record.size == image.size) {
            self.write_record(id, &Record::new(image.size, image.labels.clone()))?;
        }
        fail::point("directory.grow.record");
        for device in loop_device::find(&path)? {
            loop_device::refresh_size(&device)?;
        }
        Ok(if to > before.size {
            Change::Made(image)
        } else {
            Change::Already(image)
        })
    }

    /// Replaces the record by one with the changed labels.
    pub(super) fn relabel(&self, id: ImageId, change: &LabelChange) -> Result<Change<Image>> {
        let image = self.layout.changeable(id)?;
        let Some(labels) = change.apply(&image.labels) else {
            return Ok(Change::Already(image));
        };
        // The size is kept as recorded, so that a damaged image is not declared healthy.
        self.write_record(id, &Record::new(image.size, labels.clone()))?;
        Ok(Change::Made(Image { labels, ..image }))
    }

    fn write_record(&self, id: ImageId, record: &Record) -> Result<()> {
        let passing = self.layout.passing(TemporaryPrefix::Record, id);
        let there = self.layout.record(id);
        let written = record.write(&passing).and_then(|()| {
            fail::point("directory.record.written");
            fs::rename(&passing, &there)
                .map_err(|error| Error::io(format!("could not replace {}", there.display()), error))
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&passing);
            return Err(error);
        }
        fail::point("directory.record.renamed");
        record::sync_directory(&self.layout.directory(id))
    }

    /// Makes an image invisible, then removes it.
    pub(super) fn delete(&self, id: ImageId) -> Result<Change<()>> {
        if self.layout.get(id).is_none() {
            return Ok(Change::Already(()));
        }
        self.layout.changeable(id)?;
        if matches!(id.kind, ImageKind::Volume | ImageKind::Trash) {
            self.detach(id)?;
        }
        fail::point("directory.delete.detached");
        let deleting = self.layout.passing(TemporaryPrefix::Deleting, id);
        record::remove(&deleting)?;
        let there = self.layout.directory(id);
        fs::rename(&there, &deleting)
            .map_err(|error| Error::io(format!("could not rename {}", there.display()), error))?;
        fail::point("directory.delete.renamed");
        record::sync_directory(self.layout.kind(id.kind))?;
        end_deletion(&deleting)?;
        Ok(Change::Made(()))
    }
}

/// Removes an image that is not visible any more, its header first if it is encrypted: nobody can read its data then,
/// even in blocks that are free.
pub(super) fn end_deletion(deleting: &Path) -> Result<()> {
    let image = deleting.join("image");
    if let Ok(Some(Ok(record))) = Record::read(&deleting.join("record.json"))
        && let Some(header) = header_of(&record.labels)
        && image.is_file()
    {
        luks::forget(&image, header)?;
    }
    record::remove(deleting)
}

/// Removes what a failed change left; if even that fails, the caller must repeat the call.
fn undo(making: &Path, error: Error) -> Error {
    match record::remove(making) {
        Ok(()) => error,
        Err(second) => Error::new(
            Kind::HalfDone,
            format!(
                "{error}; the change could not be rolled back: {}",
                second.chain()
            ),
        )
        .because(error),
    }
}

/// Creates a directory, replacing one that a killed agent may have left.
fn make_anew(path: &Path) -> Result<()> {
    let attempt = || DirBuilder::new().mode(0o700).create(path);
    let made = match attempt() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            record::remove(path)?;
            attempt()
        }
        other => other,
    };
    made.map_err(|error| Error::io(format!("could not create {}", path.display()), error))
}
