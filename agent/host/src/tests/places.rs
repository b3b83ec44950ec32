//! Paths beneath a root follow no link below it, and nothing is created or mounted outside of it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use crate::{
    Access, FileSystem, Kind, MountTable, PathBeneath, Restrictions,
    mount::{bind, bind_beneath, unmount, unmount_one},
    testing::{Mounted, Scratch, run},
};

/// A root with links in it, and their targets.
fn tree() -> (Scratch, PathBuf, PathBuf) {
    let scratch = Scratch::new();
    let (root, outside) = (scratch.directory("root"), scratch.directory("outside"));
    fs::create_dir_all(outside.join("a/b")).unwrap();
    fs::create_dir_all(root.join("own/a/b")).unwrap();
    symlink(&outside, root.join("out")).unwrap();
    symlink("own", root.join("inside")).unwrap();
    fs::write(root.join("file"), "x").unwrap();
    (scratch, root, outside)
}

#[test]
fn only_what_no_link_leads_to_is_found() {
    let (scratch, root, _) = tree();
    let found = PathBeneath::find(&root, &root.join("own/a/b"))
        .unwrap()
        .unwrap();
    assert_eq!(found.path(), root.join("own/a/b"));
    assert_eq!(fs::canonicalize(found.reached()).unwrap(), found.path());
    assert!(
        PathBeneath::find(&root, &root.join("own/none/b"))
            .unwrap()
            .is_none()
    );
    assert!(
        PathBeneath::find(&root.join("none"), &root.join("none/b"))
            .unwrap()
            .is_none()
    );
    for (path, link) in [("out/a/b", "out"), ("inside/a", "inside")] {
        for place in [
            PathBeneath::find(&root, &root.join(path)).map(|_| ()),
            PathBeneath::make(&root, &root.join(path)).map(|_| ()),
        ] {
            let error = place.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{error}");
            let link = format!("link {},", root.join(link).display());
            assert!(error.to_string().contains(&link), "{error}");
        }
    }
    let last = PathBeneath::find(&root, &root.join("out"))
        .unwrap()
        .unwrap();
    assert_eq!(last.mount().unwrap_err().kind(), Kind::Invalid);
    assert_eq!(last.open_bare().unwrap_err().kind(), Kind::Invalid);
    let error = PathBeneath::find(&root, &root.join("file/x")).unwrap_err();
    assert_eq!(error.kind(), Kind::Precondition, "{error}");
    for path in [root.clone(), scratch.path(), root.join("../outside/a/b")] {
        assert_eq!(
            PathBeneath::find(&root, &path).unwrap_err().kind(),
            Kind::Invalid,
            "{path:?}"
        );
    }
    // The root itself is trusted.
    let alias = scratch.path().join("alias");
    symlink(&root, &alias).unwrap();
    assert!(
        PathBeneath::find(&alias, &alias.join("own/a/b"))
            .unwrap()
            .is_some()
    );
}

#[test]
fn what_is_missing_above_a_place_is_made() {
    let (_scratch, root, _) = tree();
    let place = PathBeneath::make(&root, &root.join("new/deeper/last")).unwrap();
    assert!(root.join("new/deeper").is_dir());
    assert!(!place.path().exists());
    assert!(place.mount().unwrap().is_none());
    PathBeneath::make(&root, &root.join("new/deeper/last")).unwrap();
    PathBeneath::make(&root.join("new/root"), &root.join("new/root/x")).unwrap();
    assert!(root.join("new/root").is_dir());
}

#[test]
fn what_is_mounted_at_a_place_is_known_and_not_covered() {
    let (_scratch, root, _) = tree();
    let mounted = Mounted::new(FileSystem::Ext4, 8 << 20);
    let target = root.join("own/a/b");
    let place = PathBeneath::find(&root, &target).unwrap().unwrap();
    bind_beneath(mounted.path(), &place, Access::ReadOnly, Restrictions::NONE).unwrap();
    let mount = place.mount().unwrap().unwrap();
    assert_eq!(mount.target, target);
    assert!(mount.read_only);
    let error = bind_beneath(mounted.path(), &place, Access::ReadOnly, Restrictions::NONE);
    assert_eq!(error.unwrap_err().kind(), Kind::InUse);
    // A path in a mount below the root is valid, too.
    assert!(
        PathBeneath::find(&root, &target.join("lost+found"))
            .unwrap()
            .is_some()
    );
    let held = fs::File::open(target.join("lost+found")).unwrap();
    let error = unmount_one(&place.reached(), &mount).unwrap_err();
    assert_eq!(error.kind(), Kind::InUse, "{error}");
    drop(held);
    unmount_one(&place.reached(), &mount).unwrap();
    assert!(place.mount().unwrap().is_none());
}

#[test]
fn a_mount_that_cannot_be_as_asked_for_is_taken_away_again() {
    let (scratch, root, _) = tree();
    let mounted = Mounted::new(FileSystem::Ext4, 8 << 20);
    let read_only = scratch.directory("read-only");
    bind(mounted.path(), &read_only, Access::ReadOnly).unwrap();
    let place = PathBeneath::find(&root, &root.join("own/a/b"))
        .unwrap()
        .unwrap();
    let refused = bind_beneath(&read_only, &place, Access::ReadWrite, Restrictions::NONE);
    assert_eq!(refused.unwrap_err().kind(), Kind::Precondition);
    assert!(place.mount().unwrap().is_none());
    assert_eq!(MountTable::read().unwrap().below(&root).count(), 0);
}

/// Another process swaps a directory for a link as fast as possible; a path-based agent would be redirected by it.
#[test]
fn nothing_is_made_or_mounted_outside_while_links_are_swapped() {
    let (scratch, root, outside) = tree();
    let source = scratch.directory("source");
    run(
        "mount",
        &["-t", "tmpfs", "drumlin-test", source.to_str().unwrap()],
    );
    let (own, link) = (root.join("own"), root.join("out"));
    let (done, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut bound, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let flags = RenameFlags::RENAME_EXCHANGE;
                renameat2(AT_FDCWD, &own, AT_FDCWD, &link, flags).unwrap();
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        for turn in 0..3_000 {
            let made = PathBeneath::make(&root, &root.join(format!("own/a/new-{turn}/x")));
            let found = PathBeneath::find(&root, &root.join("own/a/b"));
            refused += usize::from(made.is_err());
            let Ok(Some(place)) = found else { continue };
            match bind_beneath(&source, &place, Access::ReadWrite, Restrictions::NONE) {
                Ok(()) => {
                    bound += 1;
                    let mount = place.mount().unwrap().unwrap();
                    assert!(mount.target.starts_with(&root), "{mount:?}");
                    unmount_one(&place.reached(), &mount).unwrap();
                }
                Err(_) => refused += 1,
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(bound > 0 && refused > 0, "{bound} {refused}");
    assert!(swaps.load(Ordering::Relaxed) > 3_000);
    let table = MountTable::read().unwrap();
    for place in [&outside, &root] {
        assert_eq!(table.below(place).count(), 0);
    }
    let names = |path: &Path| fs::read_dir(path).unwrap().count();
    assert_eq!((names(&outside), names(&outside.join("a"))), (1, 1));
    unmount(&source).unwrap();
}
