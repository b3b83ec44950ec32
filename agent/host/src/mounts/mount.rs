//! Mounting and unmounting without external programs; each change is verified in the mount table afterwards.

use std::{
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
};

use crate::{
    Access, DeviceNumber, FileSystem, Mount, MountOptions, MountTable, PathBeneath, Restrictions,
    descriptor, holders, system,
};
use crate::{Error, Kind, Result, fail, trace};

/// Maximum number of mounts stacked at one path; more cannot be ours, or an accident.
pub const DEEPEST_STACK: usize = 64;

/// Timeout for programs that only look at an unused mount while it is being unmounted.
const GLANCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// Whether a call changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It made the change.
    Done,
    /// The state was as requested before.
    Already,
}

/// The path of `target` without symbolic links, as in the mount table; its last component must not be one.
///
/// Only the parents of `target` are resolved, so that a mount with a dead file system can still be found.
pub fn resolve(target: &Path) -> Result<PathBuf> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(Error::invalid(format!(
            "{} cannot be used as a mount point",
            target.display()
        )));
    };
    let parent = fs::canonicalize(parent).map_err(|error| {
        Error::io(
            format!("could not find directory {}", parent.display()),
            error,
        )
    })?;
    Ok(parent.join(name))
}

/// Mounts the file system of `kind` on the block device `device` at the directory `target`. Idempotent.
///
/// # Errors
/// `InUse` when something else is mounted at `target`, `Conflict` when it is this device with other access,
/// `Precondition` when the kernel cannot mount the device's contents.
pub fn mount_device(
    device: &Path,
    target: &Path,
    kind: FileSystem,
    options: &MountOptions,
) -> Result<Outcome> {
    let target = resolve(target)?;
    let number = DeviceNumber::of_block_device(device)?;
    let found = |table: &MountTable| -> Option<MountState> {
        let mount = table.at(&target)?;
        let is_ours = table.of_block_device(device, number).any(|ours| {
            ours.id == mount.id && ours.fs_type == kind.name() && ours.root == Path::new("/")
        });
        let found = is_ours.then(|| mount.effective_access());
        Some(judge(found, options.access()))
    };
    if let Some(found) = found(&MountTable::read()?) {
        return found.into_result(&target, device);
    }
    refuse_link(&target)?;
    let span = trace::mount(&target);
    nix::mount::mount(
        Some(device),
        &target,
        Some(kind.name()),
        options.flags(),
        Some(options.data().as_str()),
    )
    .map_err(|errno| mount_error(errno, (device, &target), kind))?;
    drop(span);
    check(found(&MountTable::read()?), &target)
}

/// Bind-mounts the directory or file `source` at `target`, which must be of the same type. Idempotent.
///
/// A read-only mount is read-only from the start.
///
/// # Errors
/// `InUse` when something else is mounted at `target`, `Conflict` when it is `source` with other access.
pub fn bind(source: &Path, target: &Path, access: Access) -> Result<Outcome> {
    bind_restricted(source, target, access, Restrictions::NONE)
}

/// As [`bind`], with restrictions, which also apply from the start.
///
/// # Errors
/// As those of [`bind`].
pub fn bind_restricted(
    source: &Path,
    target: &Path,
    access: Access,
    restrictions: Restrictions,
) -> Result<Outcome> {
    let target = resolve(target)?;
    let source = fs::canonicalize(source)
        .map_err(|error| Error::io(format!("could not find {}", source.display()), error))?;
    let found = |table: &MountTable| -> Option<MountState> {
        let mount = table.at(&target)?;
        let origin = origin(table, &source);
        let is_ours =
            origin.is_some_and(|(device, root)| mount.device == device && mount.root == root);
        Some(judge(is_ours.then(|| mount.access()), access))
    };
    if let Some(found) = found(&MountTable::read()?) {
        return found.into_result(&target, &source);
    }
    refuse_link(&target)?;
    let attach = || -> std::io::Result<()> {
        let _span = trace::mount(&target);
        // A path that was checked not to be a link is not followed if it is one now.
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let covered = fs::File::options()
            .read(true)
            .custom_flags(flags)
            .open(&target)?;
        let mount = restricted(&source, access, restrictions)?;
        system::move_mount(mount.as_fd(), covered.as_fd())
    };
    attach().map_err(|error| bind_error(error, &source, &target))?;
    check(found(&MountTable::read()?), &target)
}

/// A detached copy of the mount of `source`, with the restrictions.
fn restricted(
    source: &Path,
    access: Access,
    restrictions: Restrictions,
) -> std::io::Result<OwnedFd> {
    let mount = system::clone_mount(source)?;
    let read_only = match access {
        Access::ReadOnly => system::MOUNT_ATTR_RDONLY,
        Access::ReadWrite => 0,
    };
    let attributes = read_only | restrictions.attributes();
    if attributes != 0 {
        system::restrict_mount(mount.as_fd(), attributes)?;
    }
    Ok(mount)
}

/// Bind-mounts the directory or file `source` at a path beneath a root, on which nothing is mounted. It is attached
/// to the opened mount point, even if its name was changed meanwhile, and is unmounted again if the path does not
/// lead to it.
///
/// # Errors
/// `InUse` when something is mounted there, `Invalid` when a link has come in between, `Busy` when it was moved.
pub fn bind_beneath(
    source: &Path,
    place: &PathBeneath,
    access: Access,
    restrictions: Restrictions,
) -> Result<()> {
    let source = fs::canonicalize(source)
        .map_err(|error| Error::io(format!("could not find {}", source.display()), error))?;
    let covered = place.open_bare()?;
    let attach = || -> std::io::Result<u64> {
        let _span = trace::mount(place.path());
        let mount = restricted(&source, access, restrictions)?;
        system::move_mount(mount.as_fd(), covered.as_fd())?;
        descriptor::mount_id(&mount)
    };
    let id = attach().map_err(|error| bind_error(error, &source, place.path()))?;
    fail::point("mount-root.attached");
    let refused = match place.mount_from_root() {
        Ok(Some(mount)) if mount.id == id => {
            let found = judge(Some(mount.access()), access);
            if found == MountState::Wanted {
                return Ok(());
            }
            not_as_asked(place.path(), "unmounted")
        }
        // A process that keeps moving it blocks only this call.
        Ok(_) => Error::new(
            Kind::Busy,
            format!(
                "{} was moved or unmounted by another process during the mount",
                place.path().display()
            ),
        ),
        Err(error) => error,
    };
    // Addressed by the covered directory: its name could be taken by another file.
    let covered = descriptor::path_of(&covered);
    match umount_patiently(&covered, MntFlags::empty(), |table| table.has_on(id))? {
        Err(errno) if MountTable::read()?.by_id(id).is_some() => Err(Error::new(
            Kind::InUse,
            format!("{refused}; the new mount could not be unmounted: {errno}"),
        )),
        _ => Err(refused),
    }
}

/// Unmounts everything that is mounted at `target`. Idempotent.
///
/// # Errors
/// `InUse` when it is in use, naming the holders; it then stays mounted.
pub fn unmount(target: &Path) -> Result<Outcome> {
    let target = match resolve(target) {
        Ok(target) => target,
        // Nothing is mounted below what does not exist.
        Err(error) if is_missing(&error) => return Ok(Outcome::Already),
        Err(error) => return Err(error),
    };
    let mut outcome = Outcome::Already;
    for _ in 0..DEEPEST_STACK {
        let Some(top) = MountTable::read()?.at(&target).cloned() else {
            return Ok(outcome);
        };
        unmount_one(&target, &top)?;
        outcome = Outcome::Done;
    }
    Err(Error::new(
        Kind::InUse,
        format!(
            "could not unmount {}: another process keeps mounting there",
            target.display()
        ),
    ))
}

/// Unmounts one mount, the topmost one at `reached`, and nothing below it.
///
/// # Errors
/// `InUse` when it is in use, naming the holders; it then stays mounted.
pub fn unmount_one(reached: &Path, mount: &Mount) -> Result<()> {
    let is_covered = |table: &MountTable| table.has_on(mount.id);
    match umount_patiently(reached, MntFlags::UMOUNT_NOFOLLOW, is_covered)? {
        Ok(()) => Ok(()),
        Err(Errno::EBUSY) => Err(holders::mount_in_use(&mount.target)),
        // Another process has unmounted it first.
        Err(Errno::EINVAL) if MountTable::read()?.by_id(mount.id).is_none() => Ok(()),
        Err(errno) => Err(Error::io(
            format!("could not unmount {}", mount.target.display()),
            errno,
        )),
    }
}

/// Unmounts the topmost mount. Retries while programs only look at it (for its size, or at all mounts).
fn umount_patiently(
    target: &Path,
    flags: MntFlags,
    is_covered: impl Fn(&MountTable) -> bool,
) -> Result<nix::Result<()>> {
    let _span = trace::umount(target);
    let deadline = Instant::now() + GLANCE;
    loop {
        match umount2(target, flags) {
            Err(Errno::EBUSY) if Instant::now() < deadline => {
                // A mount on top of it stays.
                if is_covered(&MountTable::read()?) {
                    return Ok(Err(Errno::EBUSY));
                }
                thread::sleep(PAUSE);
            }
            other => return Ok(other),
        }
    }
}

/// The state of a mount point, compared with the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MountState {
    Wanted,
    OtherAccess,
    Foreign,
}

/// Compares the access of a mount of ours, if it is one, with the request.
fn judge(found: Option<Access>, wanted: Access) -> MountState {
    match found {
        None => MountState::Foreign,
        Some(found) if found == wanted => MountState::Wanted,
        Some(_) => MountState::OtherAccess,
    }
}

impl MountState {
    fn into_result(self, target: &Path, source: &Path) -> Result<Outcome> {
        let target = target.display();
        match self {
            Self::Wanted => Ok(Outcome::Already),
            Self::OtherAccess => Err(Error::new(
                Kind::Conflict,
                format!(
                    "{} is already mounted at {target} with different access (read-only instead of read-write, or the reverse); unmount it first",
                    source.display()
                ),
            )),
            Self::Foreign => Err(Error::new(
                Kind::InUse,
                format!(
                    "{target} is in use by another mount than that of {}; unmount it first",
                    source.display()
                ),
            )),
        }
    }
}

/// Checks the result of a change.
fn check(found: Option<MountState>, target: &Path) -> Result<Outcome> {
    match found {
        Some(MountState::Wanted) => Ok(Outcome::Done),
        // The kernel has mounted read-only instead of read-write, or mounted an older file system with the same
        // identity.
        Some(MountState::OtherAccess | MountState::Foreign) => {
            let undone = umount2(target, MntFlags::UMOUNT_NOFOLLOW);
            let became = undone.map_or("left mounted", |()| "unmounted");
            Err(not_as_asked(target, became))
        }
        None => Err(Error::new(
            Kind::HalfDone,
            format!(
                "{} was unmounted by another program right after it was mounted",
                target.display()
            ),
        )),
    }
}

fn not_as_asked(target: &Path, became: &str) -> Error {
    Error::new(
        Kind::Precondition,
        format!(
            "the mount at {} differs from the request (source or access) and was {became}; check the kernel log",
            target.display()
        ),
    )
}

/// The device, and the directory in it, that `path` shows.
fn origin(table: &MountTable, path: &Path) -> Option<(DeviceNumber, PathBuf)> {
    let mount = table.holding(path)?;
    let rest = path.strip_prefix(&mount.target).ok()?;
    let root = if rest.as_os_str().is_empty() {
        mount.root.clone()
    } else {
        mount.root.join(rest)
    };
    Some((mount.device, root))
}

/// A symbolic link at the mount point would redirect the mount.
fn refuse_link(target: &Path) -> Result<()> {
    match fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_symlink() => Err(Error::new(
            Kind::Precondition,
            format!(
                "mount point {} is a symbolic link; remove it",
                target.display()
            ),
        )),
        Ok(_) => Ok(()),
        Err(error) => Err(Error::io(
            format!("could not stat mount point {}", target.display()),
            error,
        )),
    }
}

fn is_missing(error: &Error) -> bool {
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn mount_error(errno: Errno, (device, target): (&Path, &Path), kind: FileSystem) -> Error {
    let device_text = device.display();
    let precondition = |message: String| Error::new(Kind::Precondition, message).because(errno);
    match errno {
        Errno::EBUSY => holders::device_in_use(device, &holders::users_of_device(device)),
        Errno::ENODEV => precondition(format!(
            "the running kernel does not support {kind}; load it with `modprobe {kind}`"
        )),
        Errno::EROFS | Errno::EACCES => precondition(format!(
            "device {device_text} is read-only; mount it read-only"
        )),
        Errno::ENOTDIR | Errno::ENOENT => precondition(format!(
            "mount point {} is not a directory",
            target.display()
        )),
        Errno::EINVAL | Errno::EUCLEAN | Errno::EBADMSG => precondition(format!(
            "the kernel cannot mount the {kind} file system on {device_text} with these options; see the kernel log for the reason"
        )),
        errno => Error::io(
            format!("could not mount {device_text} at {}", target.display()),
            errno,
        ),
    }
}

fn bind_error(error: std::io::Error, source: &Path, target: &Path) -> Error {
    // The kernel reports this with an error code that has many meanings.
    if source.is_dir() != target.is_dir() {
        return Error::new(
            Kind::Precondition,
            format!(
                "mount point {} must be a directory for a directory and a file for a device",
                target.display()
            ),
        )
        .because(error);
    }
    if error.raw_os_error() == Some(libc::ENOSYS) {
        return Error::new(
            Kind::Precondition,
            "mounting requires Linux 5.12 or newer, and a container runtime that permits mount_setattr(2)",
        )
        .because(error);
    }
    Error::io(
        format!(
            "could not mount {} at {}",
            source.display(),
            target.display()
        ),
        error,
    )
}
