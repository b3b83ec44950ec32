//! Which users' manifests are trusted: a user who can write one can destroy volumes.

use std::{
    fs::{self, File, Metadata},
    io,
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::OFlag,
    sys::statvfs::{FsFlags, fstatvfs},
    unistd::Uid,
};

/// What a refusal for the owner or the mode begins with.
pub(crate) const INSECURE: &str = "InsecurePermissions: ";
/// The symbolic link that kubelet's atomic writer (and similar tools) replaces to swap a whole directory at once.
const DATA: &str = "..data";

/// The users whose manifests are trusted, always including root.
#[derive(Debug, Clone)]
pub(crate) struct Trust {
    owners: Vec<Uid>,
    /// Those of them who were named.
    named: Vec<u32>,
}

impl Trust {
    /// Trusts root, the user of this process, and `more`.
    pub(crate) fn new(more: &[u32]) -> Self {
        Self::of(Uid::effective(), more)
    }

    /// What a process of this user trusts: root, the user, and `more`.
    pub(crate) fn of(user: Uid, more: &[u32]) -> Self {
        let named = more.iter().map(|uid| Uid::from_raw(*uid));
        let owners = [Uid::from_raw(0), user].into_iter().chain(named);
        Self {
            owners: owners.collect(),
            named: more.to_vec(),
        }
    }

    /// Numeric ids of the trusted users besides root and the user of this process.
    pub(super) fn named(&self) -> &[u32] {
        &self.named
    }

    /// Resolves the directory that really contains the manifests.
    ///
    /// A kubelet volume (`ConfigMap`, `Secret`) is a world-writable directory of symbolic links. A container mounts it
    /// read-only, so no user can write through this mount, and only kubelet has another path to it. In a writable
    /// directory, the target of a trusted user's `..data` link is used as it is: other users can create neither a link
    /// nor a directory of that user there.
    ///
    /// # Errors
    /// What is wrong with the directory, and how to correct it.
    pub(crate) fn locate(&self, path: &Path) -> Result<(PathBuf, Metadata), String> {
        let shown = path.display();
        let failed = |error: io::Error| format!("{shown} cannot be read: {error}");
        let root = fs::canonicalize(path).map_err(failed)?;
        let opened = File::options()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&root)
            .map_err(failed)?;
        let metadata = opened.metadata().map_err(failed)?;
        if !metadata.is_dir() {
            return Err(format!("{shown} is not a directory"));
        }
        match self.check(&opened, &metadata) {
            Ok(()) => Ok((root, metadata)),
            Err(why) => match self.behind_data(&root) {
                Some(found) => Ok(found),
                None => Err(format!("{shown}: {why}")),
            },
        }
    }

    /// The target of `..data`, if no untrusted user can have created it.
    fn behind_data(&self, root: &Path) -> Option<(PathBuf, Metadata)> {
        let link = root.join(DATA);
        let is_link = fs::symlink_metadata(&link).ok()?;
        if !is_link.is_symlink() || !self.has(&is_link) {
            return None;
        }
        let target = fs::canonicalize(&link).ok()?;
        let opened = File::open(&target).ok()?;
        let metadata = opened.metadata().ok()?;
        let is_beside = target.parent() == Some(root) && metadata.is_dir();
        (is_beside && self.check(&opened, &metadata).is_ok()).then_some((target, metadata))
    }

    /// Checks that an opened file or directory is trusted.
    ///
    /// # Errors
    /// How to correct the owner or the mode.
    pub(super) fn check(&self, opened: &impl AsFd, metadata: &Metadata) -> Result<(), String> {
        if !self.has(metadata) {
            let uid = metadata.uid();
            return Err(format!(
                "{INSECURE}owned by user {uid}; change the owner to root (chown root), or trust that user (--manifest-owner {uid})"
            ));
        }
        // The mode of a symbolic link has no meaning; its target was opened.
        if metadata.mode() & 0o022 != 0 && !is_read_only(opened) {
            return Err(format!(
                "{INSECURE}writable by its group or others (mode {:o}); remove that permission (chmod go-w), or mount it read-only",
                metadata.mode() & 0o7777
            ));
        }
        Ok(())
    }

    fn has(&self, metadata: &Metadata) -> bool {
        self.owners.contains(&Uid::from_raw(metadata.uid()))
    }
}

/// Returns true if the mount through which this was opened is read-only.
fn is_read_only(opened: &impl AsFd) -> bool {
    fstatvfs(opened).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY))
}
