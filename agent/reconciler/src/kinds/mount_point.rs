//! Directories that an administrator made for mounts. The agent removes what it unmounts a volume from, as CSI asks; such a
//! directory is made again.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    path::Path,
};

use serde::{Deserialize, Serialize};

/// Permission bits.
const PERMISSIONS: u32 = 0o7777;

/// An empty directory that was there before a volume was mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MountPoint {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl MountPoint {
    /// The directory at a path; none if there is none.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::symlink_metadata(path).ok()?;
        metadata.is_dir().then(|| Self {
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode: metadata.mode() & PERMISSIONS,
        })
    }

    /// Makes it again where it is missing.
    pub(crate) fn put_back(&self, path: &Path) {
        let made = self.make(path);
        if let Err(error) = made
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            tracing::warn!(path = %path.display(), %error, "directory of a former mount not made again");
        }
    }

    fn make(&self, path: &Path) -> io::Result<()> {
        // Nobody else gets in before it has its owner.
        DirBuilder::new().mode(0o700).create(path)?;
        chown(path, Some(self.uid), Some(self.gid))?;
        fs::set_permissions(path, Permissions::from_mode(self.mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_again_with_its_owner_and_mode_and_never_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        assert_eq!(MountPoint::of(&path), None);
        fs::create_dir(&path).unwrap();
        chown(&path, Some(65534), Some(65533)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o2750)).unwrap();
        let found = MountPoint::of(&path).unwrap();
        fs::remove_dir(&path).unwrap();
        found.put_back(&path);
        assert_eq!(MountPoint::of(&path), Some(found.clone()));
        fs::set_permissions(&path, Permissions::from_mode(0o711)).unwrap();
        found.put_back(&path);
        assert_ne!(MountPoint::of(&path), Some(found));
    }
}
