//! Paths beneath a root directory whose contents are not trusted: accessed only through open descriptors.
//!
//! The root itself is trusted and may be reached through links. Below it no link is followed: each directory is
//! opened by name in its parent, and everything that is created, mounted, unmounted or removed is addressed relative
//! to an open directory, so that concurrent renames cannot redirect it out of the root.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, ResolveFlag},
    sys::stat::{Mode, SFlag, fstat, fstatat, mkdirat},
};

use crate::{Error, Kind, Result, fail};
use crate::{
    Mount, MountTable,
    descriptor::{mount_id, open_in, path_of},
};

/// Maximum number of attempts when a directory is removed right before it is opened.
const MOST_TRIES: usize = 16;

/// A name in an open directory beneath a root.
#[derive(Debug)]
pub struct PathBeneath {
    root: PathBuf,
    path: PathBuf,
    parent: OwnedFd,
}

/// What to do with missing directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Made,
    Left,
}

impl PathBeneath {
    /// Opens the parent of `path`, which has no components `.` and `..`; none if a parent directory is missing.
    ///
    /// # Errors
    /// `Invalid` when it is not below the root, or contains a symbolic link, which is named; `Precondition` when
    /// another component is not a directory.
    pub fn find(root: &Path, path: &Path) -> Result<Option<Self>> {
        match open_root(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(root, error)),
            Ok(top) => Self::below(top, (root, path), Missing::Left),
        }
    }

    /// As [`Self::find`], but creates missing parent directories.
    ///
    /// # Errors
    /// As those of [`PathBeneath::find`].
    pub fn make(root: &Path, path: &Path) -> Result<Self> {
        fs::create_dir_all(root).map_err(|error| failed(root, error))?;
        let top = open_root(root).map_err(|error| failed(root, error))?;
        let place = Self::below(top, (root, path), Missing::Made)?;
        place.ok_or_else(|| failed(path, Errno::ENOENT.into()))
    }

    fn below(top: OwnedFd, (root, path): (&Path, &Path), missing: Missing) -> Result<Option<Self>> {
        let above = path
            .parent()
            .and_then(|above| above.strip_prefix(root).ok());
        let is_name = |part: Component<'_>| matches!(part, Component::Normal(_));
        let above = above.filter(|above| above.components().all(is_name));
        let Some(above) = above else {
            return Err(Error::invalid(format!(
                "target_path {} is not below its root {}",
                path.display(),
                root.display()
            )));
        };
        fail::point("mount-root.root");
        let (mut parent, mut so_far) = (top, root.to_owned());
        for name in above {
            so_far.push(name);
            let Some(next) = enter(&parent, (name, &so_far, path), missing)? else {
                return Ok(None);
            };
            parent = next;
            fail::point("mount-root.entered");
        }
        Ok(Some(Self {
            root: root.to_owned(),
            path: path.to_owned(),
            parent,
        }))
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path for this process, which resolves no symbolic link except one at its last component.
    pub fn reached(&self) -> PathBuf {
        path_of(&self.parent).join(self.name())
    }

    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// The topmost mount there.
    ///
    /// # Errors
    /// `Invalid` when it is a symbolic link.
    pub fn mount(&self) -> Result<Option<Mount>> {
        let there = match self.open(ResolveFlag::RESOLVE_BENEATH) {
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(failed(&self.path, errno.into())),
            Ok(there) => there,
        };
        self.refuse_link(&there)?;
        let ids = mount_id(&there).and_then(|id| Ok((id, mount_id(&self.parent)?)));
        let (id, above) = ids.map_err(|error| failed(&self.path, error))?;
        if id == above {
            return Ok(None);
        }
        let table = MountTable::read()?;
        // It cannot be unmounted while it is open.
        let mount = table
            .by_id(id)
            .ok_or_else(|| failed(&self.path, Errno::ESTALE.into()))?;
        Ok(Some(mount.clone()))
    }

    /// The topmost mount there, resolved again from the root.
    ///
    /// # Errors
    /// As those of [`PathBeneath::find`].
    pub(crate) fn mount_from_root(&self) -> Result<Option<Mount>> {
        let place = Self::find(&self.root, &self.path)?;
        place.map_or(Ok(None), |place| place.mount())
    }

    /// Opens the mount point: a directory or a file, on which nothing is mounted.
    ///
    /// # Errors
    /// `Invalid` when it is a symbolic link, `InUse` when something is mounted there.
    pub(crate) fn open_bare(&self) -> Result<OwnedFd> {
        let flags = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV;
        let there = self.open(flags).map_err(|errno| match errno {
            Errno::EXDEV => Error::new(
                Kind::InUse,
                format!(
                    "another mount is present at {}; unmount it first",
                    self.path.display()
                ),
            ),
            errno => failed(&self.path, errno.into()),
        })?;
        self.refuse_link(&there)?;
        Ok(there)
    }

    fn open(&self, resolve: ResolveFlag) -> nix::Result<OwnedFd> {
        open_in(&self.parent, self.name(), OFlag::O_PATH, resolve)
    }

    fn refuse_link(&self, there: &OwnedFd) -> Result<()> {
        let status = fstat(there).map_err(|errno| failed(&self.path, errno.into()))?;
        if is_link(status.st_mode) {
            return Err(link(&self.path, &self.path));
        }
        Ok(())
    }
}

fn open_root(root: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    Ok(File::options()
        .read(true)
        .custom_flags(flags)
        .open(root)?
        .into())
}

/// Opens a directory in its parent.
fn enter(
    parent: &OwnedFd,
    (name, so_far, path): (&OsStr, &Path, &Path),
    missing: Missing,
) -> Result<Option<OwnedFd>> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    for _ in 0..MOST_TRIES {
        match open_in(parent, name, flags, ResolveFlag::RESOLVE_BENEATH) {
            Ok(next) => return Ok(Some(next)),
            Err(Errno::ENOENT) if missing == Missing::Left => return Ok(None),
            Err(Errno::ENOENT) => match mkdirat(parent, name, Mode::from_bits_truncate(0o755)) {
                Ok(()) => fail::point("mount-root.made"),
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(failed(so_far, errno.into())),
            },
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                let status = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW);
                if status.is_ok_and(|status| !is_link(status.st_mode)) {
                    return Err(Error::new(
                        Kind::Precondition,
                        format!(
                            "target_path {} has a component that is not a directory",
                            path.display()
                        ),
                    ));
                }
                return Err(link(path, so_far));
            }
            Err(errno) => return Err(failed(so_far, errno.into())),
        }
    }
    Err(Error::new(
        Kind::Busy,
        format!(
            "directory {} is repeatedly created and removed by another process",
            so_far.display()
        ),
    ))
}

fn is_link(mode: libc::mode_t) -> bool {
    SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()) == SFlag::S_IFLNK
}

fn link(path: &Path, link: &Path) -> Error {
    Error::invalid(format!(
        "target_path {} contains the symbolic link {}, which is not allowed below its root",
        path.display(),
        link.display()
    ))
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::io(format!("could not use {}", path.display()), error)
}
