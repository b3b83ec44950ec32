//! Image files that others made. One is adopted by renames within its file system: no byte of it is copied, its inode
//! stays, and with it every loop device and mount over it.
//!
//! The file is moved to a directory with a temporary name that has its record already, and that directory is renamed to
//! its place. An interruption leaves the file under one of three names; where the directory is opened next, a file that
//! was moved is moved on, and one that was not stays where it was. Nothing here removes an image.

use std::{
    fs::{self, DirBuilder, Metadata},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
};

use async_trait::async_trait;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::{
    Allocation, Directory, Inner,
    class::{MINIMUM, UNIT},
    layout::{IMAGE, RECORD, TemporaryPrefix},
    record::{self, Record},
};
use crate::{
    Error, Kind, Result,
    backend::{
        AdoptionSpec, Change, ForeignVolume, ForeignVolumes, Image, Maker, Selection,
        foreign::not_adoptable,
    },
    fail,
    host::{Access, LoopDevice, MountTable, holders, loop_device},
    types::{ImageId, ImageKind, Size},
};

#[async_trait]
impl ForeignVolumes for Directory {
    /// Files can be anywhere on the file system of the directory; those are listed that have a loop device.
    async fn foreign(&self, selection: Selection<'_>) -> Result<Vec<ForeignVolume>> {
        let one = match selection {
            Selection::All => None,
            Selection::One(source) if source.starts_with('/') => Some(source.to_owned()),
            Selection::One(_) => return Ok(Vec::new()),
        };
        self.run(move |inner| match one {
            Some(source) => Ok(inner
                .describe(&source, &loop_device::list()?)?
                .into_iter()
                .collect()),
            None => inner.attached_files(),
        })
        .await
    }

    async fn check_adoption(&self, spec: &AdoptionSpec) -> Result<()> {
        let spec = spec.clone();
        self.run(move |inner| inner.check_adoption(&spec)).await
    }

    async fn adopt(&self, spec: &AdoptionSpec) -> Result<Change<Image>> {
        let spec = spec.clone();
        self.run(move |inner| inner.adopt_file(&spec)).await
    }

    async fn check_release(&self, id: ImageId, to: Option<&Path>) -> Result<String> {
        let to = to.map(Path::to_owned);
        self.run(move |inner| inner.check_release(id, to.as_deref()))
            .await
    }

    async fn release(&self, id: ImageId, to: Option<&Path>) -> Result<String> {
        let to = to.map(Path::to_owned);
        self.run(move |inner| inner.release_file(id, to.as_deref()))
            .await
    }
}

impl Inner {
    /// The files of others on this file system that have a loop device.
    fn attached_files(&self) -> Result<Vec<ForeignVolume>> {
        let here = self.stat_volumes()?;
        let own = fs::canonicalize(&self.settings.path);
        let own = own.unwrap_or_else(|_| self.settings.path.clone());
        let mut found = Vec::new();
        let devices = loop_device::list()?;
        for device in &devices {
            let path = &device.backing.path;
            let is_foreign = device.backing.device == here.dev()
                && !device.backing.deleted
                && !path.starts_with(&own);
            if let (true, Some(path)) = (is_foreign, path.to_str()) {
                // It may be gone meanwhile.
                found.extend(self.describe(path, &devices).ok().flatten());
            }
        }
        found.dedup_by(|one, other| one.source == other.source);
        Ok(found)
    }

    /// What is known of a file, of which `all` has the loop devices; none if it does not exist.
    fn describe(&self, source: &str, all: &[LoopDevice]) -> Result<Option<ForeignVolume>> {
        let path = Path::new(source);
        let failed = |error| Error::io(format!("could not read {source}"), error);
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        let mut refusals = self.refusals(path, &metadata)?;
        let devices = if metadata.is_file() {
            devices_over(&metadata, all)
        } else {
            Vec::new()
        };
        refusals.extend(refused_devices(&devices, &metadata));
        if metadata.is_file() {
            let users = holders::users_of_file(path);
            if !users.is_empty() {
                refusals.push(format!(
                    "it is in use by {}; stop that use first",
                    users.join(", ")
                ));
            }
        }
        let device = devices.first().map(|device| device.path.clone());
        let contents = metadata.is_file().then(|| path.to_owned());
        let mode = metadata.permissions().mode() & 0o7777;
        Ok(Some(ForeignVolume {
            source: source.to_owned(),
            size: Size::try_from(metadata.len()).unwrap_or_default(),
            maker: Maker::Hand,
            contents: device.clone().or(contents),
            device,
            misfit: self.misfit(path, &metadata)?,
            refusals,
            warnings: vec![format!(
                "it is moved below {} by a rename, and keeps its owner ({}:{}) and mode ({mode:o}) there; handover moves it back",
                self.settings.path.display(),
                metadata.uid(),
                metadata.gid()
            )],
        }))
    }

    /// Why a file cannot come to this directory by a rename, if it cannot.
    fn misfit(&self, path: &Path, metadata: &Metadata) -> Result<Option<String>> {
        let directory = self.settings.path.display();
        if metadata.dev() != self.stat_volumes()?.dev() {
            return Ok(Some(format!(
                "it is on another file system than {directory}, and is never copied; configure a directory class on its file system"
            )));
        }
        let table = MountTable::read()?;
        let mount = |path: &Path| {
            let path = fs::canonicalize(path).ok()?;
            table.holding(&path).map(|mount| mount.id)
        };
        let volumes = self.layout.kind(ImageKind::Volume);
        let is_same = path.parent().and_then(mount) == mount(volumes);
        Ok((!is_same).then(|| {
            format!(
                "it is reached through another mount than {directory}, so it cannot be renamed; name it by its path in the mount that has {directory}"
            )
        }))
    }

    /// Why a file itself forbids its adoption.
    fn refusals(&self, path: &Path, metadata: &Metadata) -> Result<Vec<String>> {
        let mut refusals = Vec::new();
        if !metadata.is_file() {
            refusals.push("it is not a regular file; name the image file itself".to_owned());
            return Ok(refusals);
        }
        let real = fs::canonicalize(path)
            .map_err(|error| Error::io(format!("could not resolve {}", path.display()), error))?;
        if real != path {
            refusals.push(format!(
                "its path has symbolic links or dots; name it {}",
                real.display()
            ));
        }
        let own = fs::canonicalize(&self.settings.path);
        if own.is_ok_and(|own| real.starts_with(own)) {
            refusals.push(format!(
                "it is within {}, where the images of a class are",
                self.settings.path.display()
            ));
        }
        let record = real.with_file_name(RECORD);
        if real.file_name().is_some_and(|name| name == IMAGE) && record.exists() {
            refusals.push(format!(
                "it is an image of a Drumlin agent, which has its record beside it ({}); have that agent hand it over, or configure a class for the directory of its images",
                record.display()
            ));
        }
        if metadata.nlink() > 1 {
            refusals.push(format!(
                "it has {} names (hard links); remove the others, find -samefile shows them",
                metadata.nlink()
            ));
        }
        let (length, unit) = (metadata.len(), UNIT.bytes());
        if length < MINIMUM.bytes() || !length.is_multiple_of(unit) {
            refusals.push(format!(
                "its size, {length} bytes, is no multiple of {unit} bytes of at least {MINIMUM}; extend it with truncate --size %{unit}"
            ));
        }
        if self.settings.allocation == Allocation::Thick && metadata.blocks() * 512 < length {
            refusals.push(format!(
                "it is sparse, and its class reserves all blocks; reserve them with fallocate --length {length} {}",
                path.display()
            ));
        }
        Ok(refusals)
    }

    fn stat_volumes(&self) -> Result<Metadata> {
        let path = self.layout.kind(ImageKind::Volume);
        fs::metadata(path)
            .map_err(|error| Error::io(format!("could not stat {}", path.display()), error))
    }

    fn check_adoption(&self, spec: &AdoptionSpec) -> Result<()> {
        let Some(found) = self.describe(&spec.source, &loop_device::list()?)? else {
            return Err(Error::not_found(format!("{} does not exist", spec.source)));
        };
        let refusals: Vec<String> = found.refusals.into_iter().chain(found.misfit).collect();
        if refusals.is_empty() {
            return Ok(());
        }
        Err(not_adoptable(&spec.source, &refusals))
    }

    fn adopt_file(&self, spec: &AdoptionSpec) -> Result<Change<Image>> {
        let (id, source) = (spec.id, Path::new(&spec.source));
        let adopting = self.layout.passing(TemporaryPrefix::Adopting, id);
        // An earlier call may have failed after the file was moved.
        self.settle(&adopting, id)?;
        if let Some(image) = self.layout.get(id) {
            return Ok(Change::Already(image));
        }
        self.check_adoption(spec)?;
        let metadata = fs::metadata(source)
            .map_err(|error| Error::io(format!("could not stat {}", spec.source), error))?;
        let size = Size::try_from(metadata.len())?;
        let begun = begin_adoption(&adopting, source, &Record::new(size, spec.labels.clone()));
        if let Err(error) = begun {
            return Err(match self.settle(&adopting, id) {
                Ok(()) => error,
                Err(second) => error.undo_failed("the adoption could not be undone", &second),
            });
        }
        self.settle(&adopting, id)?;
        Ok(Change::Made(self.layout.usable(id)?))
    }

    /// Ends an adoption or a handover that was begun: a directory with an image gets its place, one without is removed.
    pub(super) fn settle(&self, begun: &Path, id: ImageId) -> Result<()> {
        let failed = |error| Error::io(format!("could not settle {}", begun.display()), error);
        match fs::symlink_metadata(begun.join(IMAGE)) {
            Ok(_) => {
                let there = self.layout.directory(id);
                if there.exists() {
                    tracing::warn!(directory = %begun.display(), object = %id, "image of an interrupted adoption or handover left where it is: its place is taken");
                    return Ok(());
                }
                fs::rename(begun, there).map_err(failed)?;
                fail::point("directory.adopt.renamed");
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match fs::remove_file(begun.join(RECORD)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(failed(error));
                    }
                    _ => {}
                }
                match fs::remove_dir(begun) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                    other => other.map_err(failed)?,
                }
            }
            Err(error) => return Err(failed(error)),
        }
        record::sync_directory(self.layout.kind(id.kind))
    }

    fn check_release(&self, id: ImageId, to: Option<&Path>) -> Result<String> {
        self.layout.usable(id)?;
        let Some(to) = to else {
            return Err(Error::invalid(
                "path is missing: where the image file is to be moved to",
            ));
        };
        let refused = |why: &str| {
            let message = format!("path {} {why}", to.display());
            Err(Error::new(Kind::Precondition, message))
        };
        let Some(parent) = to.parent().filter(|_| to.is_absolute()) else {
            return refused("is not the absolute path of a file");
        };
        let Ok(parent) = fs::canonicalize(parent) else {
            return refused("has no parent directory; create it first");
        };
        let own = fs::canonicalize(&self.settings.path);
        if own.is_ok_and(|own| parent.starts_with(own)) {
            return refused("is within the directory of the class; name another one");
        }
        if fs::symlink_metadata(to).is_ok() {
            return refused("exists already; name another one, or move that file away");
        }
        let table = MountTable::read()?;
        let mount = |path: &Path| table.holding(path).map(|mount| mount.id);
        let volumes = fs::canonicalize(self.layout.kind(ImageKind::Volume));
        if volumes.ok().and_then(|volumes| mount(&volumes)) != mount(&parent) {
            return refused(
                "is on another file system, or reached through another mount; the file is renamed, never copied",
            );
        }
        to.to_str()
            .map(str::to_owned)
            .ok_or_else(|| Error::invalid(format!("path {} is not UTF-8", to.display())))
    }

    fn release_file(&self, id: ImageId, to: Option<&Path>) -> Result<String> {
        let shown = self.check_release(id, to)?;
        let to = Path::new(&shown);
        let releasing = self.layout.passing(TemporaryPrefix::Releasing, id);
        self.settle(&releasing, id)?;
        let failed =
            |error: io::Error| Error::io(format!("could not move the image to {shown}"), error);
        fs::rename(self.layout.directory(id), &releasing).map_err(failed)?;
        fail::point("directory.release.hidden");
        let from = releasing.join(IMAGE);
        // Whatever came there meanwhile is not replaced.
        let moved = renameat2(AT_FDCWD, &from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE);
        let moved = moved.map_err(|errno| failed(errno.into()));
        fail::point("directory.release.moved");
        // With the image in it, it goes back to its place.
        let settled = self.settle(&releasing, id);
        moved?;
        to.parent().map_or(Ok(()), record::sync_directory)?;
        settled?;
        // The agent kept the device while it was its volume; now nobody else would detach it.
        if let Err(error) = loop_device::end_with_last_user(to) {
            tracing::warn!(path = shown, error = %error.chain(), "loop device of a file that was handed over stays");
        }
        Ok(shown)
    }
}

/// Moves the file to the directory with its record.
fn begin_adoption(adopting: &Path, source: &Path, record: &Record) -> Result<()> {
    DirBuilder::new()
        .mode(0o700)
        .create(adopting)
        .map_err(|error| Error::io(format!("could not create {}", adopting.display()), error))?;
    record.write(&adopting.join(RECORD))?;
    record::sync_directory(adopting)?;
    fail::point("directory.adopt.recorded");
    fs::rename(source, adopting.join(IMAGE))
        .map_err(|error| Error::io(format!("could not rename {}", source.display()), error))?;
    fail::point("directory.adopt.moved");
    record::sync_directory(adopting)?;
    source.parent().map_or(Ok(()), record::sync_directory)
}

/// The loop devices that show a file, or a part of it.
fn devices_over(file: &Metadata, all: &[LoopDevice]) -> Vec<LoopDevice> {
    let is_over = |device: &&LoopDevice| {
        device.backing.device == file.dev() && device.backing.inode == file.ino()
    };
    all.iter().filter(is_over).cloned().collect()
}

/// Why the loop devices over a file forbid its adoption.
fn refused_devices(devices: &[LoopDevice], file: &Metadata) -> Option<String> {
    let names: Vec<String> = devices
        .iter()
        .map(|device| device.path.display().to_string())
        .collect();
    let names = names.join(" ");
    if devices.len() > 1 {
        return Some(format!(
            "it has several loop devices ({names}); detach all but one with losetup -d"
        ));
    }
    let device = devices.first()?;
    if !device.backing.is_whole(file) {
        return Some(format!(
            "loop device {names} shows a part of it only; detach it with losetup -d"
        ));
    }
    (device.access == Access::ReadOnly).then(|| {
        format!(
            "loop device {names} is read-only; attach it writable, or detach it with losetup -d"
        )
    })
}
