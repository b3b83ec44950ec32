//! Creating file systems, and giving a copy its own identity.
//!
//! How an interrupted [`make`] is distinguished from a volume with data, so that no data is ever lost: the caller
//! stores a durable mark with a volume that it created and that was never used, and removes it when `make` has
//! returned, before the first mount, and before the volume is published raw. A volume without the mark is never
//! passed to `make`. One with the mark that [`crate::is_untouched`] is [`FormatTarget::Untouched`]; with the mark and
//! not untouched, an earlier `make` was interrupted: [`FormatTarget::Debris`].

use std::{fs::File, path::Path};

use crate::{Error, Kind, Result, blocking};
use crate::{
    FileSystem, Probe,
    exec::{self, Program},
    filesystem, probe,
    superblock::{UNFINISHED_BTRFS, UNFINISHED_XFS, UNKNOWN},
};

/// The state of the volume that a file system is created on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatTarget {
    /// The volume was never written to: every byte is zero.
    Untouched,
    /// The volume was never written to, and its ends are zeros; the bytes between are not, because it is encrypted.
    Unzeroed,
    /// A volume that was created and never used, on which an earlier [`make`] was interrupted.
    Debris,
}

/// Creates a file system of `kind` on the block device or image file `device`.
///
/// If interrupted, it must be repeated with [`FormatTarget::Debris`]. It continues when its caller goes away.
///
/// # Errors
/// `Invalid` when its programs are missing, `OutOfRange` when the device is too small, `Precondition` when the device
/// is not in the state `ground`; it is then unchanged.
pub async fn make(device: &Path, kind: FileSystem, ground: FormatTarget) -> Result<()> {
    require(kind.maker(), kind).await?;
    let checked = device.to_owned();
    blocking(move || check_ground(&checked, kind, ground)).await?;
    match kind {
        FileSystem::Ext4 => make_ext4(device, ground).await,
        // No discard: it would release the blocks that a thick image has reserved.
        FileSystem::Xfs | FileSystem::Btrfs => {
            let program = Program::changing(kind.maker()).args(["-q", "-f", "-K"]);
            program.arg(device).run().await.map(drop)
        }
    }
}

/// Gives the unmounted file system on `device` a new UUID, if two with the same UUID cannot be mounted together.
///
/// This affects only btrfs: xfs is mounted with `nouuid`, and ext4 has no such restriction. Each run sets a different
/// UUID, so the caller records which copies still need one; it can be repeated after an interruption.
///
/// # Errors
/// `Invalid` when the programs of btrfs are missing.
pub async fn new_uuid(device: &Path, kind: FileSystem) -> Result<()> {
    match kind {
        FileSystem::Ext4 | FileSystem::Xfs => Ok(()),
        FileSystem::Btrfs => {
            require("btrfstune", kind).await?;
            // `-m` rewrites only the superblock; `-u` would rewrite every metadata block.
            Program::changing("btrfstune")
                .args(["-f", "-m"])
                .arg(device)
                .run()
                .await
                .map(drop)
        }
    }
}

/// Checks that volumes can be formatted with `kind` on this node.
///
/// # Errors
/// `Invalid`, naming the missing package.
pub async fn check_maker(kind: FileSystem) -> Result<()> {
    require(kind.maker(), kind).await
}

/// Checks for a program of `kind`; the error names its package.
pub(crate) async fn require(program: &'static str, kind: FileSystem) -> Result<()> {
    if blocking(move || Ok(exec::find(program).is_some())).await? {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "file system {kind} requires the program {program}, which is missing on this node; install the package {}",
        kind.package()
    )))
}

async fn make_ext4(device: &Path, ground: FormatTarget) -> Result<()> {
    // No blocks reserved for root: the whole volume belongs to its user.
    let program = |extended: &str| {
        Program::changing(FileSystem::Ext4.maker())
            .args(["-q", "-F", "-m", "0", "-E", extended])
            .arg(device)
    };
    if ground == FormatTarget::Untouched {
        // Nothing is zeroed then, neither by mkfs nor later by the kernel: the image stays sparse and the agent idle.
        match program("nodiscard,assume_storage_prezeroed=1").run().await {
            Ok(_) => return Ok(()),
            // e2fsprogs before 1.47 does not support it, and reports that before it writes.
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
        (Probe::Known(found), FormatTarget::Untouched | FormatTarget::Unzeroed) => {
            found.kind.name()
        }
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
