//! The layout of the directory, and reading images from it.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{AT_FDCWD, AtFlags},
    sys::stat::{FileStat, SFlag, fstatat},
};

use super::record::Record;
use crate::{
    Error, Kind, Result,
    backend::{Health, Image, Labels, Reason},
    types::{ImageId, ImageKind, Key, Size},
};

/// The data of an image, in its directory.
pub(super) const IMAGE: &str = "image";
/// The record of an image, beside its data.
pub(super) const RECORD: &str = "record.json";

/// The paths within a directory class.
#[derive(Debug)]
pub(super) struct Layout {
    volumes: PathBuf,
    snapshots: PathBuf,
    groups: PathBuf,
    group_snapshots: PathBuf,
    trash: PathBuf,
}

/// Prefixes of the temporary names that stand before an image's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemporaryPrefix {
    /// A directory that is being filled.
    Making,
    /// A directory that is being removed.
    Deleting,
    /// A record that will replace the current one.
    Record,
    /// Data that will replace the current data.
    Image,
    /// A marker that a file system is frozen.
    Frozen,
    /// The directory of an image file of others that is being adopted.
    Adopting,
    /// The directory of an image whose file is being handed over.
    Releasing,
}

impl TemporaryPrefix {
    const ALL: [Self; 7] = [
        Self::Making,
        Self::Deleting,
        Self::Record,
        Self::Image,
        Self::Frozen,
        Self::Adopting,
        Self::Releasing,
    ];

    fn prefix(self) -> &'static str {
        match self {
            Self::Making => ".making-",
            Self::Deleting => ".deleting-",
            Self::Record => ".record-",
            Self::Image => ".image-",
            Self::Frozen => ".frozen-",
            Self::Adopting => ".adopting-",
            Self::Releasing => ".releasing-",
        }
    }
}

impl Layout {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            volumes: root.join("volumes"),
            snapshots: root.join("snapshots"),
            groups: root.join("groups"),
            group_snapshots: root.join("group-snapshots"),
            trash: root.join("trash"),
        }
    }

    /// The directory of all images of a kind.
    pub(super) fn kind(&self, kind: ImageKind) -> &Path {
        match kind {
            ImageKind::Volume => &self.volumes,
            ImageKind::Snapshot => &self.snapshots,
            ImageKind::Group => &self.groups,
            ImageKind::GroupSnapshot => &self.group_snapshots,
            ImageKind::Trash => &self.trash,
        }
    }

    /// The directory of one image.
    pub(super) fn directory(&self, id: ImageId) -> PathBuf {
        self.kind(id.kind).join(id.key.to_string())
    }

    /// The path of an image's data.
    pub(super) fn image(&self, id: ImageId) -> PathBuf {
        self.directory(id).join(IMAGE)
    }

    /// The path of an image's record.
    pub(super) fn record(&self, id: ImageId) -> PathBuf {
        self.directory(id).join(RECORD)
    }

    /// The path of a temporary file of an image.
    pub(super) fn passing(&self, passing: TemporaryPrefix, id: ImageId) -> PathBuf {
        self.kind(id.kind)
            .join(format!("{}{}", passing.prefix(), id.key))
    }

    /// All temporary files of a kind, as left by a killed process.
    pub(super) fn all_passing(
        &self,
        kind: ImageKind,
    ) -> Result<Vec<(TemporaryPrefix, ImageId, PathBuf)>> {
        let mut found = Vec::new();
        self.each(kind, |name, path| {
            let Some(name) = name.to_str() else { return };
            for passing in TemporaryPrefix::ALL {
                if let Some(key) = name.strip_prefix(passing.prefix()).and_then(Key::parse) {
                    found.push((passing, ImageId { kind, key }, path()));
                }
            }
        })?;
        Ok(found)
    }

    /// One image; none if it has no directory.
    pub(super) fn get(&self, id: ImageId) -> Option<Image> {
        let home = self.directory(id);
        let record = Record::read_at(AT_FDCWD, &self.record(id));
        if let Ok(None) = record
            && !home.is_dir()
        {
            return None;
        }
        Some(look(id, record, AT_FDCWD, &home))
    }

    /// All images of a kind in one pass, by key.
    pub(super) fn list(&self, kind: ImageKind) -> Result<Vec<Image>> {
        let here = self.open(kind)?;
        let keys = self.keys(kind)?.into_iter();
        let images = keys.filter_map(|key| Self::get_in(&here, ImageId { kind, key }));
        Ok(images.collect())
    }

    /// The keys of all images of a kind.
    pub(super) fn keys(&self, kind: ImageKind) -> Result<BTreeSet<Key>> {
        let mut keys = BTreeSet::new();
        self.each(kind, |name, _| {
            keys.extend(name.to_str().and_then(Key::parse));
        })?;
        Ok(keys)
    }

    /// Opens the directory of all images of a kind. Paths relative to it have one component to resolve.
    pub(super) fn open(&self, kind: ImageKind) -> Result<File> {
        File::open(self.kind(kind)).map_err(|error| self.unread(kind, error))
    }

    /// One image in the opened directory of its kind; none if it has no directory.
    pub(super) fn get_in(here: &File, id: ImageId) -> Option<Image> {
        let home = PathBuf::from(id.key.to_string());
        let record = Record::read_at(here.as_fd(), &home.join(RECORD));
        if let Ok(None) = record
            && stat(here.as_fd(), &home).is_err()
        {
            return None;
        }
        Some(look(id, record, here.as_fd(), &home))
    }

    /// Returns true if the files of an image are regular files with one name each, so that nothing can change them
    /// under another path.
    pub(super) fn is_plain(here: &File, id: ImageId) -> bool {
        let home = PathBuf::from(id.key.to_string());
        let is_plain = |name| {
            stat(here.as_fd(), &home.join(name))
                .is_ok_and(|found| is_file(&found) && found.st_nlink == 1)
        };
        is_plain(RECORD) && (!id.kind.has_bytes() || is_plain(IMAGE))
    }

    fn unread(&self, kind: ImageKind, error: io::Error) -> Error {
        Error::io(
            format!("could not read {}", self.kind(kind).display()),
            error,
        )
    }

    fn each(
        &self,
        kind: ImageKind,
        mut visit: impl FnMut(&OsStr, &dyn Fn() -> PathBuf),
    ) -> Result<()> {
        let failed = |error| self.unread(kind, error);
        for entry in fs::read_dir(self.kind(kind)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            visit(&entry.file_name(), &|| entry.path());
        }
        Ok(())
    }

    /// One image that may be changed.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or [`Kind::Precondition`] when its record cannot be read.
    pub(super) fn changeable(&self, id: ImageId) -> Result<Image> {
        let image = self
            .get(id)
            .ok_or_else(|| Error::not_found(format!("{id} does not exist")))?;
        match &image.health {
            Health::Unreadable(fault) => Err(Error::new(
                Kind::Precondition,
                format!("{id} cannot be changed: {}", fault.message),
            )),
            Health::Good | Health::Degraded(_) | Health::Damaged(_) => Ok(image),
        }
    }

    /// One image whose data may be used.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or [`Kind::Precondition`] when it is damaged.
    pub(super) fn usable(&self, id: ImageId) -> Result<Image> {
        let image = self.changeable(id)?;
        match &image.health {
            Health::Damaged(fault) => Err(Error::new(
                Kind::Precondition,
                format!("{id} cannot be used: {}", fault.message),
            )),
            _ => Ok(image),
        }
    }
}

/// Returns whether the image in `home`, a path relative to `here`, is a regular file, and its length.
fn length(here: BorrowedFd<'_>, home: &Path) -> io::Result<(bool, Size)> {
    let found = stat(here, &home.join(IMAGE))?;
    let bytes = u64::try_from(found.st_size).unwrap_or_default();
    Ok((is_file(&found), Size::try_from(bytes).unwrap_or_default()))
}

fn stat(here: BorrowedFd<'_>, path: &Path) -> io::Result<FileStat> {
    Ok(fstatat(here, path, AtFlags::AT_SYMLINK_NOFOLLOW)?)
}

fn is_file(found: &FileStat) -> bool {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
}

/// Reads the record and the length of the data in `home`, a path relative to `here`.
fn look(
    id: ImageId,
    record: io::Result<Option<Result<Record, String>>>,
    here: BorrowedFd<'_>,
    home: &Path,
) -> Image {
    let length = if id.kind.has_bytes() {
        length(here, home)
    } else {
        Ok((true, Size::default()))
    };
    judge(id, record, length)
}

/// Compares an image's record with its data.
///
/// The size is that of the file unless it is below the recorded one: growing extends the file first, and an
/// interruption at that point counts as complete.
fn judge(
    id: ImageId,
    record: io::Result<Option<Result<Record, String>>>,
    length: io::Result<(bool, Size)>,
) -> Image {
    let unreadable = |why: String| Image {
        id,
        size: length.as_ref().map(|(_, size)| *size).unwrap_or_default(),
        labels: Labels::new(),
        health: Health::unreadable(why),
    };
    let record = match record {
        Ok(Some(Ok(record))) => record,
        Ok(Some(Err(why))) => return unreadable(why),
        Ok(None) => return unreadable("its record.json is missing".to_owned()),
        Err(error) => return unreadable(format!("its record.json cannot be read: {error}")),
    };
    let (size, health) = match length {
        Ok((true, size)) if size >= record.size => (size.round_down(super::UNIT), Health::Good),
        Ok((true, size)) => (
            record.size,
            Health::damaged(
                Reason::ImageTruncated,
                format!(
                    "its image file has {size} instead of {}; it was truncated or replaced",
                    record.size
                ),
            ),
        ),
        Ok((false, _)) => (
            record.size,
            Health::damaged(Reason::ImageReplaced, "its image is not a regular file"),
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (
            record.size,
            Health::damaged(Reason::ImageMissing, "its image file is missing"),
        ),
        Err(error) => (
            record.size,
            Health::damaged(
                Reason::ImageUnreadable,
                format!("its image file cannot be read: {error}"),
            ),
        ),
    };
    Image {
        id,
        size,
        labels: record.labels,
        health,
    }
}
