//! The directory is opened and locked when it is used, not once at start: it may come and go with a mount.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::Path,
    sync::{Mutex, MutexGuard},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    unistd::{AccessFlags, access},
};

use super::{
    Inner, Missing, create::end_deletion, layout::TemporaryPrefix, memory::UsedNote, record,
};
use crate::{
    Error, Kind, Result,
    host::{MountTable, crypt_mapping, freeze, lock, loop_device},
    types::ImageKind,
};

/// The directory that was opened last; a different one at its path is opened anew.
#[derive(Debug, Default)]
pub(super) struct Opening(Mutex<Option<Opened>>);

#[derive(Debug)]
struct Opened {
    device: u64,
    inode: u64,
    /// Held while the directory is used, so that two agents never share one.
    _lock: Flock<File>,
}

impl Opening {
    fn lock(&self) -> MutexGuard<'_, Option<Opened>> {
        lock(&self.0)
    }
}

impl Inner {
    /// Returns true if the directory has been usable before.
    pub(super) fn was_opened(&self) -> bool {
        self.opening.lock().is_some()
    }

    /// Makes sure that the directory is usable: once, and again whenever a different directory is at its path. Costs
    /// one system call when nothing changed.
    pub(super) fn open(&self) -> Result<()> {
        let path = &self.settings.path;
        let note = || UsedNote::of(&self.settings);
        let now = match fs::metadata(path) {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && let Some(note) = note().filter(UsedNote::is_there) =>
            {
                return Err(note.lost("is missing"));
            }
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && self.settings.missing == Missing::Create
                    // An empty one in the place of one that has gone away would pass for it.
                    && !self.was_opened() =>
            {
                make_directory(path)?;
                fs::metadata(path)
            }
            other => other,
        };
        let now = now.map_err(|error| unusable(path, "cannot be read", error))?;
        if !now.is_dir() {
            return Err(Error::new(
                Kind::Precondition,
                format!("{} is not a directory", path.display()),
            ));
        }
        let mut opened = self.opening.lock();
        if let Some(opened) = opened.as_ref()
            && (opened.device, opened.inode) == (now.dev(), now.ino())
        {
            return Ok(());
        }
        // The lock of a removed directory must not keep its file system busy.
        *opened = None;
        let lock = take(path)?;
        let belongs = self.belongs()?;
        let note = note();
        if let Some(note) = note.as_ref().filter(|note| note.is_there())
            && self.is_bare()?
        {
            return Err(note.lost("is empty"));
        }
        for kind in ImageKind::ALL {
            make_directory(self.layout.kind(kind))?;
        }
        self.undo_leftovers()?;
        self.take_over(&belongs)?;
        if let Some(note) = &note {
            note.write();
        }
        *opened = Some(Opened {
            device: now.dev(),
            inode: now.ino(),
            _lock: lock,
        });
        Ok(())
    }

    /// Checks that the directory is writable now.
    pub(super) fn check(&self) -> Result<()> {
        let all = AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK;
        let path = self.layout.kind(ImageKind::Volume);
        access(path, all).map_err(|error| unusable(path, "cannot be written", error.into()))
    }

    /// Recovery: thaws what a killed agent froze, and removes incomplete images and changes.
    fn undo_leftovers(&self) -> Result<()> {
        for kind in ImageKind::ALL {
            for (passing, id, path) in self.layout.all_passing(kind)? {
                match passing {
                    TemporaryPrefix::Making => record::remove(&path)?,
                    TemporaryPrefix::Deleting => end_deletion(&path)?,
                    TemporaryPrefix::Record | TemporaryPrefix::Image => unlink(&path)?,
                    // They may have the only name of an image: it is moved on or back, never removed.
                    TemporaryPrefix::Adopting | TemporaryPrefix::Releasing => {
                        self.settle(&path, id)?;
                    }
                    TemporaryPrefix::Frozen => {
                        for device in loop_device::find(&self.layout.image(id))? {
                            let used = crypt_mapping::uppermost(&device.path)?;
                            for mount in MountTable::read()?.file_systems_of(&used)? {
                                freeze::thaw(&mount.target)?;
                            }
                        }
                        unlink(&path)?;
                        tracing::info!(object = %id, "file system thawed");
                        continue;
                    }
                }
                tracing::info!(object = %id, "incomplete change rolled back");
            }
        }
        Ok(())
    }
}

fn unlink(path: &Path) -> Result<()> {
    fs::remove_file(path)
        .map_err(|error| Error::io(format!("could not remove {}", path.display()), error))
}

fn make_directory(path: &Path) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).recursive(true).create(path);
    made.map_err(|error| unusable(path, "cannot be created", error))
}

fn take(path: &Path) -> Result<Flock<File>> {
    let directory = File::open(path).map_err(|error| unusable(path, "cannot be read", error))?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => Error::new(
            Kind::Precondition,
            format!(
                "{} is in use by another agent; configure a separate directory for each agent",
                path.display()
            ),
        ),
        errno => unusable(path, "cannot be locked", errno.into()),
    })
}

/// The error for an unusable directory: what is wrong, and what to do.
fn unusable(path: &Path, what: &str, error: io::Error) -> Error {
    let advice = match error.raw_os_error() {
        Some(libc::ENOENT) => "; create it, or mount the file system that it is on",
        Some(libc::EROFS) => "; its file system is read-only: remount it read-write",
        Some(libc::EACCES | libc::EPERM) => {
            "; run the agent as root and check the directory's attributes"
        }
        Some(libc::ENOSPC) => "; its file system is full",
        _ => "",
    };
    Error::new(
        Kind::Precondition,
        format!("directory {} {what}{advice}", path.display()),
    )
    .because(error)
}
