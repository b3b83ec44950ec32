//! Making a file system, and giving a copy its own identity.
//!
//! How an interrupted [`make`] is told from a volume with data, so that nothing is ever lost: the caller
//! keeps a durable mark with a volume that it made and that was never used, and takes it away when `make`
//! has returned, before the first mount, and as soon as the volume is handed out raw.
//! A volume without the mark is never given to `make`. One with the mark that [`super::is_untouched`] is
//! [`FormatTarget::Untouched`]; with the mark and not untouched, an earlier `make` was interrupted: [`FormatTarget::Debris`].

use std::{fs::File, path::Path};

use super::{
    FileSystem, Probe,
    exec::{self, Program},
    filesystem, probe,
    superblock::{UNFINISHED_BTRFS, UNFINISHED_XFS, UNKNOWN},
};
use crate::{Error, Kind, Result, blocking};

/// What a new file system is put upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatTarget {
    /// Nothing was ever written there: every byte is zero.
    Untouched,
    /// A volume that we made and nobody has used, on which an earlier [`make`] was interrupted.
    Debris,
}

/// Makes a file system of `kind` on the block device or image file `device`.
///
/// Interrupted, it leaves debris, and is to be repeated with [`FormatTarget::Debris`]. It goes on when its caller goes away.
///
/// # Errors
/// `Invalid` when its programs are missing, `OutOfRange` when the device is too small,
/// `Precondition` when the device is not what `ground` says; it is then as it was.
pub async fn make(device: &Path, kind: FileSystem, ground: FormatTarget) -> Result<()> {
    require(kind.maker(), kind).await?;
    let checked = device.to_owned();
    blocking(move || check_ground(&checked, kind, ground)).await?;
    match kind {
        FileSystem::Ext4 => make_ext4(device, ground).await,
        // No discard: that would give back the blocks that a thick image has reserved.
        FileSystem::Xfs | FileSystem::Btrfs => {
            let program = Program::changing(kind.maker()).args(["-q", "-f", "-K"]);
            program.arg(device).run().await.map(drop)
        }
    }
}

/// Gives the unmounted file system on `device` an id of its own, where two with one id cannot be mounted together.
///
/// That is btrfs: xfs is mounted so that it does not care, and ext4 never does. May be repeated and interrupted;
/// each time the id is another one, so the caller marks what still needs it.
///
/// # Errors
/// `Invalid` when the programs of btrfs are missing.
pub async fn new_uuid(device: &Path, kind: FileSystem) -> Result<()> {
    match kind {
        FileSystem::Ext4 | FileSystem::Xfs => Ok(()),
        FileSystem::Btrfs => {
            require("btrfstune", kind).await?;
            // `-m` writes the superblock alone; `-u` would write every block of metadata.
            Program::changing("btrfstune")
                .args(["-f", "-m"])
                .arg(device)
                .run()
                .await
                .map(drop)
        }
    }
}

/// Whether volumes can be formatted with `kind` here.
///
/// # Errors
/// `Invalid` naming the package that is missing.
pub async fn check_maker(kind: FileSystem) -> Result<()> {
    require(kind.maker(), kind).await
}

/// An error that names the package when a program of `kind` is missing.
pub(super) async fn require(program: &'static str, kind: FileSystem) -> Result<()> {
    if blocking(move || Ok(exec::find(program).is_some())).await? {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "file system {kind} requires the program {program}, which is missing on this node; install the package {}",
        kind.package()
    )))
}

async fn make_ext4(device: &Path, ground: FormatTarget) -> Result<()> {
    // No blocks kept for root: the whole volume is its user's.
    let program = |extended: &str| {
        Program::changing(FileSystem::Ext4.maker())
            .args(["-q", "-F", "-m", "0", "-E", extended])
            .arg(device)
    };
    if ground == FormatTarget::Untouched {
        // Nothing is zeroed then, by mkfs now or by the kernel later: the image stays sparse and the agent idle.
        match program("nodiscard,assume_storage_prezeroed=1").run().await {
            Ok(_) => return Ok(()),
            // e2fsprogs before 1.47 does not know it, and says so before it writes.
            Err(error) if error.to_string().contains("Bad option") => {}
            Err(error) => return Err(error),
        }
    }
    program("nodiscard,lazy_itable_init=1,lazy_journal_init=1")
        .run()
        .await
        .map(drop)
}

fn check_ground(device: &Path, kind: FileSystem, ground: FormatTarget) -> Result<()> {
    let size = File::open(device)
        .and_then(|file| filesystem::size_of_file(&file))
        .map_err(|error| Error::io(format!("could not read {}", device.display()), error))?;
    if size < kind.minimum_bytes() {
        return Err(Error::new(
            Kind::OutOfRange,
            format!(
                "a volume of {size} bytes is too small for file system {kind}, which needs {} bytes",
                kind.minimum_bytes()
            ),
        ));
    }
    let found = match (probe(device)?, ground) {
        (Probe::Blank, _)
        | (
            Probe::Known(_) | Probe::Foreign(UNKNOWN | UNFINISHED_XFS | UNFINISHED_BTRFS),
            FormatTarget::Debris,
        ) => return Ok(()),
        (Probe::Known(found), FormatTarget::Untouched) => found.kind.name(),
        (Probe::Foreign(name), _) => name,
    };
    Err(Error::new(
        Kind::Precondition,
        format!(
            "{} was not formatted because it contains {found}; its data is unchanged",
            device.display()
        ),
    ))
}
