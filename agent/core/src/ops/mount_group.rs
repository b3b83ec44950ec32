//! Giving a mounted file system to a group (CSI, `volume_mount_group`).

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown},
    path::Path,
};

use crate::{Error, Result};

/// What the group gets on directories: everything, and new files belong to it.
const DIRECTORY: u32 = 0o2070;
/// What the group gets on files.
const FILE: u32 = 0o060;

/// Makes everything below `root` belong to `group`, which can read and write it.
///
/// The root is changed last: when it belongs to the group all the rest does, and a repeat has nothing to do.
pub(super) fn give(root: &Path, group: u32) -> Result<()> {
    let failed = |error| {
        Error::io(
            format!("could not give {} to group {group}", root.display()),
            error,
        )
    };
    let metadata = fs::symlink_metadata(root).map_err(failed)?;
    if metadata.gid() == group && metadata.mode() & DIRECTORY == DIRECTORY {
        return Ok(());
    }
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            give_one(&path, group).map_err(failed)?;
            if entry.file_type().map_err(failed)?.is_dir() {
                waiting.push(path);
            }
        }
    }
    give_one(root, group).map_err(failed)
}

fn give_one(path: &Path, group: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return lchown(path, None, Some(group));
    }
    chown(path, None, Some(group))?;
    let bits = if metadata.is_dir() { DIRECTORY } else { FILE };
    // Changing the owner takes set-user-id bits away, so the mode comes second.
    fs::set_permissions(
        path,
        fs::Permissions::from_mode(metadata.mode() & 0o7777 | bits),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_given_whole_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        let outside = directory.path().join("outside");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "x").unwrap();
        fs::write(&outside, "x").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        let before = fs::metadata(&outside).unwrap().gid();

        give(&root, 4711).unwrap();
        for path in [&root, &root.join("a/b"), &root.join("a/b/file")] {
            assert_eq!(fs::metadata(path).unwrap().gid(), 4711, "{path:?}");
        }
        assert_eq!(
            fs::metadata(root.join("a")).unwrap().mode() & 0o2070,
            0o2070
        );
        assert_eq!(fs::metadata(outside).unwrap().gid(), before);
    }
}
