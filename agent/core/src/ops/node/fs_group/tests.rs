//! Trees are given whole, and nothing outside of them is touched.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use nix::{
    fcntl::{AT_FDCWD, OFlag, RenameFlags, openat, renameat2},
    sys::stat::{Mode, SFlag, makedev, mkdirat, mknod},
    unistd::{UnlinkatFlags, unlinkat},
};

use super::give;
use crate::host::{
    FileSystem,
    testing::{Mounted, Scratch, run},
};

const GROUP: u32 = 4711;

fn owner(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.gid(), metadata.mode() & 0o7777)
}

#[test]
fn a_tree_is_given_whole_and_links_are_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let outside = directory.path().join("outside");
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/b/file"), "x").unwrap();
    fs::write(&outside, "x").unwrap();
    symlink(&outside, root.join("link")).unwrap();
    let before = owner(&outside);

    give(&root, GROUP).unwrap();
    for path in [&root, &root.join("a/b"), &root.join("a/b/file")] {
        assert_eq!(owner(path).0, GROUP, "{path:?}");
    }
    assert_eq!(owner(&root.join("a")).1 & 0o2070, 0o2070);
    assert_eq!(owner(&root.join("a/b/file")).1 & 0o060, 0o060);
    assert_eq!(owner(&root.join("link")).0, GROUP);
    assert_eq!(owner(&outside), before);
}

#[test]
fn more_entries_than_are_read_at_once_are_all_given() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    for number in 0..700 {
        let name = format!("{number}-{}", "long".repeat(40));
        fs::create_dir_all(root.join(&name)).unwrap();
        fs::write(root.join(&name).join("file"), "x").unwrap();
        fs::write(root.join(format!("file-{name}")), "x").unwrap();
    }
    give(&root, GROUP).unwrap();
    let mut found = 0;
    for entry in fs::read_dir(&root).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(owner(&path).0, GROUP, "{path:?}");
        if path.is_dir() {
            assert_eq!(owner(&path.join("file")).0, GROUP, "{path:?}");
        }
        found += 1;
    }
    assert_eq!(found, 1400);
}

/// A tenant that has its files already swaps directories and files for links to what is not its own, as fast as it can.
#[test]
fn nothing_outside_changes_while_directories_are_swapped_for_links() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let outside = directory.path().join("outside");
    fs::create_dir_all(outside.join("sub/deeper")).unwrap();
    let secrets = ["file", "sub/file", "sub/deeper/file"].map(|name| outside.join(name));
    for secret in &secrets {
        fs::write(secret, "x").unwrap();
        fs::set_permissions(secret, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let kept: Vec<_> = [
        outside.clone(),
        outside.join("sub"),
        outside.join("sub/deeper"),
    ]
    .into_iter()
    .chain(secrets)
    .map(|path| (owner(&path), path))
    .collect();
    let pairs: Vec<_> = (0..8)
        .map(|number| {
            let at = root.join(format!("d{number}"));
            fs::create_dir_all(at.join("own/sub/deeper")).unwrap();
            fs::write(at.join("own/sub/file"), "x").unwrap();
            symlink(&outside, at.join("link")).unwrap();
            (at.join("own"), at.join("link"))
        })
        .collect();
    let (done, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for (own, link) in &pairs {
                    let flags = RenameFlags::RENAME_EXCHANGE;
                    renameat2(AT_FDCWD, own, AT_FDCWD, link, flags).unwrap();
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let begun = Instant::now();
        let mut walks = 0;
        while swaps.load(Ordering::Relaxed) < 20_000 || walks < 500 {
            // One that was stopped by what happened meanwhile is begun again, as by a repeat.
            let _ = give(&root, GROUP + walks % 2);
            walks += 1;
            if begun.elapsed() > Duration::from_mins(2) {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(walks >= 500, "{walks}");
    });
    for (before, path) in &kept {
        assert_eq!(owner(path), *before, "{path:?}");
    }
    give(&root, GROUP).unwrap();
}

/// Directories that are moved out of the tree while they are walked lead nobody out of it.
#[test]
fn a_directory_that_is_moved_away_does_not_take_the_walk_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let (root, outside) = (
        directory.path().join("root"),
        directory.path().join("outside"),
    );
    fs::create_dir_all(outside.join("more")).unwrap();
    let deep = "d/".repeat(20);
    fs::create_dir_all(root.join("moved").join(&deep)).unwrap();
    let kept = [outside.clone(), outside.join("more")].map(|path| (owner(&path), path));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = fs::rename(root.join("moved/d/d/d"), outside.join("d"));
                let _ = fs::rename(outside.join("d"), root.join("moved/d/d/d"));
            }
        });
        for walk in 0..500 {
            let _ = give(&root, GROUP + walk % 2);
        }
        done.store(true, Ordering::Relaxed);
    });
    for (before, path) in &kept {
        assert_eq!(owner(path), *before, "{path:?}");
    }
    give(&root, GROUP + 2).unwrap();
    assert_eq!(owner(&root).0, GROUP + 2);
}

#[test]
fn a_tree_of_a_hundred_thousand_levels_is_given_with_few_files_open() {
    const LEVELS: usize = 100_000;
    let scratch = Scratch::new();
    let root = scratch.directory("root");
    run(
        "mount",
        &["-t", "tmpfs", "drumlin-test", root.to_str().unwrap()],
    );
    let open = |at: &std::os::fd::OwnedFd, name: &str| {
        openat(
            at,
            name,
            OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW,
            Mode::empty(),
        )
        .unwrap()
    };
    let top = std::os::fd::OwnedFd::from(fs::File::open(&root).unwrap());
    let mut at = open(&top, ".");
    for _ in 0..LEVELS {
        mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
        at = open(&at, "d");
    }
    let deepest = fs::File::from(at);
    give(&root, GROUP).unwrap();
    assert_eq!(deepest.metadata().unwrap().gid(), GROUP);
    // Away with it from below, for the same reason.
    let mut at = std::os::fd::OwnedFd::from(deepest);
    for _ in 0..LEVELS {
        at = open(&at, "..");
        unlinkat(&at, "d", UnlinkatFlags::RemoveDir).unwrap();
    }
}

#[test]
fn what_is_mounted_in_a_tree_is_not_given_and_neither_are_devices() {
    let scratch = Scratch::new();
    let root = scratch.directory("root");
    let other = scratch.directory("root/other");
    run(
        "mount",
        &["-t", "tmpfs", "drumlin-test", other.to_str().unwrap()],
    );
    fs::write(other.join("file"), "x").unwrap();
    let file = scratch.image("root/file", 1);
    let shown = scratch.image("root/shown", 1);
    let mounted = scratch.image("mounted", 1);
    run(
        "mount",
        &["--bind", mounted.to_str().unwrap(), shown.to_str().unwrap()],
    );
    let (fifo, device) = (root.join("fifo"), root.join("device"));
    mknod(&fifo, SFlag::S_IFIFO, Mode::S_IRUSR, 0).unwrap();
    mknod(&device, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 3)).unwrap();
    let kept = [other.join("file"), other, mounted, device].map(|path| (owner(&path), path));
    give(&root, GROUP).unwrap();
    for (before, path) in &kept {
        assert_eq!(owner(path), *before, "{path:?}");
    }
    assert_eq!(owner(&file), (GROUP, 0o664));
    assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
    assert_eq!(owner(&fifo).0, GROUP);
}

#[test]
fn the_subvolumes_of_a_btrfs_are_given_too() {
    let mounted = Mounted::new(FileSystem::Btrfs, 128 << 20);
    let part = mounted.path().join("part");
    run("btrfs", &["subvolume", "create", part.to_str().unwrap()]);
    fs::write(part.join("file"), "x").unwrap();
    give(mounted.path(), GROUP).unwrap();
    assert_eq!(owner(&part.join("file")).0, GROUP);
}
