//! Point-in-time copies of images.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
};

use super::{Allocation, Inner, layout::TemporaryPrefix};
use crate::{
    Error, Kind, Result,
    backend::{ImageSpec, Job},
    fail,
    host::{
        Frozen, MountTable, WriteWatch,
        copy::{self, Reflink},
        crypt_mapping, fsync, loop_device,
    },
    types::{ImageId, ImageKind},
};

/// Keeps the contents of an image unchanged while it exists, or detects writes.
enum Stillness {
    /// There are no writers.
    Nothing,
    /// Raw users can write. They cannot be quiesced, so a copy during which they wrote is discarded; so is one that
    /// cannot be watched.
    ListCache(Result<WriteWatch>),
    /// The file system is frozen; a marker lets the next agent thaw it after a kill.
    Frozen {
        frozen: Option<Frozen>,
        mark: std::path::PathBuf,
    },
}

impl Stillness {
    /// Fails if raw users may have written since it began.
    fn check(&self) -> io::Result<()> {
        let Self::ListCache(watch) = self else {
            return Ok(());
        };
        let watch = watch.as_ref();
        let watch = watch.map_err(|error| io::Error::other(error.chain()))?;
        if watch.saw_writes()? {
            return Err(io::Error::other("it was written during the copy"));
        }
        Ok(())
    }
}

impl Drop for Stillness {
    fn drop(&mut self) {
        if let Self::Frozen { frozen, mark } = self {
            // Thaw first: a marker without a frozen file system is harmless, the reverse is not.
            drop(frozen.take());
            if let Err(error) = fs::remove_file(&*mark) {
                tracing::warn!(path = %mark.display(), %error, "marker of a frozen file system not removed");
            }
        }
    }
}

impl Inner {
    /// Fills `target`, an empty file, with a point-in-time copy of `source`.
    pub(super) fn copy(&self, source: ImageId, target: &File, spec: &ImageSpec) -> Result<()> {
        self.layout.usable(source)?;
        let path = self.layout.image(source);
        let from = File::open(&path)
            .map_err(|error| Error::io(format!("could not open {}", path.display()), error))?;
        let still = self.hold_still(source, &from, &path)?;
        fail::point("directory.copy.still");
        let copied = self.copy_bytes(&from, target, spec, || still.check());
        fail::point("directory.copy.copied");
        let copied = match copied {
            // The kernel blocks writes while it shares the blocks.
            Ok(Reflink::Done) => Ok(()),
            copied => match still.check() {
                Ok(()) => copied.map(drop),
                Err(why) => Err(self.not_held(source, why)),
            },
        };
        drop(still);
        fail::point("directory.copy.thawed");
        copied
    }

    /// The error for a copy during which raw users may have written.
    fn not_held(&self, source: ImageId, why: io::Error) -> Error {
        let allocation = match self.settings.allocation {
            Allocation::Thick => " with `allocation: thick`",
            Allocation::Thin => "",
        };
        Error::new(
            Kind::Precondition,
            format!(
                "{source} is in use as a raw block device, which an image directory cannot quiesce during a copy, and {}{allocation} cannot share blocks between images; stop its writers, unpublish and unstage it, or use a thin class on a file system with reflinks (xfs, btrfs) or an LVM class",
                self.settings.path.display()
            ),
        )
        .because(why)
    }

    /// Copies all data, or shares its blocks; returns which. `check` is called between steps, and can abort a copy.
    pub(super) fn copy_bytes(
        &self,
        from: &File,
        target: &File,
        spec: &ImageSpec,
        check: impl Fn() -> io::Result<()>,
    ) -> Result<Reflink> {
        let failed = |error| Error::io("could not stat an image", error);
        let taken = from.metadata().map_err(failed)?.blocks() * 512;
        let job = self.running.begin(spec.id, Job::Copying, 0..taken);
        let mut copied = 0;
        let mut step = |bytes| {
            copied += bytes;
            // What the agent must end before it stops is short enough.
            let _ = job.goes_on(copied);
            check()
        };
        match (self.settings.allocation, spec.id.kind) {
            // A reserved block must not be shared, or writing to it would need a new one.
            (Allocation::Thick, ImageKind::Volume) => {
                copy::full_copy(from, target, spec.size.bytes(), step)?;
            }
            (Allocation::Thick, _) => copy::sparse_copy(from, target, step)?,
            (Allocation::Thin, _) => match copy::reflink(from, target)? {
                Reflink::Done => return Ok(Reflink::Done),
                Reflink::Unsupported => copy::sparse_copy(from, target, &mut step)?,
            },
        }
        Ok(Reflink::Unsupported)
    }

    /// Freezes the file system on an image if one is mounted from it; otherwise flushes what raw users wrote to the
    /// file, and watches for writes.
    fn hold_still(&self, id: ImageId, image: &File, path: &Path) -> Result<Stillness> {
        if id.kind == ImageKind::Snapshot {
            return Ok(Stillness::Nothing);
        }
        let devices = loop_device::find(path)?;
        if devices.is_empty() {
            return Ok(Stillness::Nothing);
        }
        let table = MountTable::read()?;
        let mut mount_point = None;
        for device in &devices {
            let used = crypt_mapping::uppermost(&device.path)?;
            let mut mounts = table.file_systems_of(&used)?.into_iter();
            let writable = mounts.find(|mount| !mount.is_file_system_read_only());
            mount_point = mount_point.or(writable.map(|mount| mount.target.clone()));
        }
        let Some(mount_point) = mount_point else {
            for device in &devices {
                flush(&crypt_mapping::uppermost(&device.path)?)?;
                flush(&device.path)?;
            }
            return Ok(Stillness::ListCache(WriteWatch::begin(image, &devices)));
        };
        // Read by the agent that starts after a kill; a power cut thaws everything, so nothing is synced.
        let mark = self.layout.passing(TemporaryPrefix::Frozen, id);
        fs::write(&mark, b"")
            .map_err(|error| Error::io(format!("could not write {}", mark.display()), error))?;
        fail::point("directory.copy.marked");
        let mut still = Stillness::Frozen { frozen: None, mark };
        if let Stillness::Frozen { frozen, .. } = &mut still {
            *frozen = Some(Frozen::freeze(&mount_point)?);
        }
        Ok(still)
    }
}

/// Flushes the cached writes of a block device to its image.
fn flush(device: &Path) -> Result<()> {
    OpenOptions::new()
        .read(true)
        .open(device)
        .and_then(|device| fsync(&device))
        .map_err(|error| Error::io(format!("could not flush {}", device.display()), error))
}
