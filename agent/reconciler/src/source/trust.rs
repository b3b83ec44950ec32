//! Whose manifests are believed: who can write one can have volumes destroyed.

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

/// The link behind which kubelet, and what is made like it, swaps a whole directory at once.
const DATA: &str = "..data";

/// The users whose manifests are believed, root always among them.
#[derive(Debug, Clone)]
pub(crate) struct Trust {
    owners: Vec<Uid>,
}

impl Trust {
    /// Root, the user who runs this, and these.
    pub(crate) fn new(more: &[u32]) -> Self {
        let more = more.iter().map(|uid| Uid::from_raw(*uid));
        let owners = [Uid::from_raw(0), Uid::effective()].into_iter().chain(more);
        Self {
            owners: owners.collect(),
        }
    }

    /// Where the manifests of a directory really are.
    ///
    /// A volume of kubelet's (`ConfigMap`, `Secret`) is a directory that everybody may write, with links in it. A container
    /// has it mounted read-only, so that nobody writes there by this way, and no other leads to it but kubelet's own. Where
    /// it can be written, what a trusted user's `..data` leads to is taken as it is: others can put neither a link of that
    /// user's nor a directory of his there.
    ///
    /// # Errors
    /// Says what is wrong with the directory, and what to do.
    pub(super) fn locate(&self, path: &Path) -> Result<(PathBuf, Metadata), String> {
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

    /// The directory that `..data` leads to, if nobody else can have put it there.
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

    /// Whether what was opened can be believed.
    ///
    /// # Errors
    /// Says what to do.
    pub(super) fn check(&self, opened: &impl AsFd, metadata: &Metadata) -> Result<(), String> {
        if !self.has(metadata) {
            let uid = metadata.uid();
            return Err(format!(
                "InsecurePermissions: owned by user {uid}; change the owner to root (chown root), or trust that user (--manifest-owner {uid})"
            ));
        }
        // A link's own bits say nothing; what it leads to was opened.
        if metadata.mode() & 0o022 != 0 && !is_read_only(opened) {
            return Err(format!(
                "InsecurePermissions: writable by its group or others (mode {:o}); remove that permission (chmod go-w), or mount it read-only",
                metadata.mode() & 0o7777
            ));
        }
        Ok(())
    }

    fn has(&self, metadata: &Metadata) -> bool {
        self.owners.contains(&Uid::from_raw(metadata.uid()))
    }
}

/// Whether nobody can write by the mount through which this was opened.
fn is_read_only(opened: &impl AsFd) -> bool {
    fstatvfs(opened).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY))
}
