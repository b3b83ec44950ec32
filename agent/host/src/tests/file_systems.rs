//! File systems are created only on blank devices, and grow with their devices.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    time::Duration,
};

use crate::{
    Access, Disk, FileSystem, Growth, Kind, MountOptions, Probe,
    format::{FormatTarget, make, new_uuid},
    grow, grow_unmounted, is_untouched,
    loop_device::{attach, refresh_size},
    may_grow_mounted_ext4,
    mount::{mount_device, unmount},
    probe,
    testing::{Mounted, Scratch, run, run_and_kill},
};

const MIB: u64 = 1 << 20;

fn smallest() -> [(FileSystem, u64); 3] {
    FileSystem::ALL.map(|kind| (kind, kind.minimum_bytes()))
}

#[tokio::test]
async fn every_file_system_can_be_made_at_its_smallest_and_mounted() {
    for (kind, bytes) in smallest() {
        let scratch = Scratch::new();
        let image = scratch.image("image", bytes);
        assert!(is_untouched(&image).unwrap());
        let device = attach(&image, Access::ReadWrite).unwrap();
        make(&device.path, kind, FormatTarget::Untouched)
            .await
            .unwrap();
        assert!(!is_untouched(&image).unwrap());
        let Probe::Known(found) = probe(&device.path).unwrap() else {
            panic!("{kind} is not known");
        };
        assert_eq!(found.kind, kind);
        assert_eq!(found.size_bytes, bytes);
        assert_ne!(found.is_clean, Some(false));
        let target = scratch.directory("mnt");
        mount_device(&device.path, &target, kind, &MountOptions::new(kind)).unwrap();
        fs::write(target.join("file"), "hello").unwrap();
        unmount(&target).unwrap();
    }
}

#[tokio::test]
async fn a_large_ext4_stays_sparse_and_leaves_the_kernel_nothing_to_do() {
    let scratch = Scratch::new();
    let image = scratch.image("image", 8 << 30);
    let device = attach(&image, Access::ReadWrite).unwrap();
    make(&device.path, FileSystem::Ext4, FormatTarget::Untouched)
        .await
        .unwrap();
    let used = fs::metadata(&image).unwrap().blocks() * 512;
    assert!(used < 8 * MIB, "{used}");
    let groups = run("dumpe2fs", &[image.to_str().unwrap()]);
    let unfinished = groups
        .lines()
        .filter(|line| line.contains(": (Blocks ") && !line.contains("ITABLE_ZEROED"));
    assert_eq!(unfinished.count(), 0);
}

#[tokio::test]
async fn too_small_is_out_of_range_and_says_what_would_do() {
    for (kind, bytes) in smallest() {
        let scratch = Scratch::new();
        let image = scratch.image("image", bytes - 4096);
        let error = make(&image, kind, FormatTarget::Untouched)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::OutOfRange);
        assert!(error.to_string().contains(&bytes.to_string()), "{error}");
        assert!(is_untouched(&image).unwrap());
    }
}

#[tokio::test]
async fn nothing_is_made_upon_data() {
    let scratch = Scratch::new();
    let image = scratch.image("image", 16 * MIB);
    let file = File::options().read(true).write(true).open(&image).unwrap();
    for offset in [0, 4096, MIB - 1, 16 * MIB - 1] {
        file.write_all_at(b"x", offset).unwrap();
        assert_eq!(probe(&image).unwrap(), Probe::Foreign("unknown data"));
        let before = fs::read(&image).unwrap();
        let error = make(&image, FileSystem::Ext4, FormatTarget::Untouched)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Precondition);
        assert_eq!(fs::read(&image).unwrap(), before);
        file.write_all_at(b"\0", offset).unwrap();
    }
    make(&image, FileSystem::Ext4, FormatTarget::Untouched)
        .await
        .unwrap();
    let error = make(&image, FileSystem::Ext4, FormatTarget::Untouched)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("contains ext4"), "{error}");
}

#[tokio::test]
async fn debris_is_made_anew_but_what_others_own_is_not() {
    let scratch = Scratch::new();
    let image = scratch.image("image", 320 * MIB);
    for kind in FileSystem::ALL {
        make(&image, kind, FormatTarget::Debris).await.unwrap();
        assert!(matches!(probe(&image).unwrap(), Probe::Known(found) if found.kind == kind));
        // Half of it, as left by a killed program.
        let file = File::options().write(true).open(&image).unwrap();
        file.write_all_at(&[0; 8192], 0).unwrap();
        file.write_all_at(&[0; 8192], 65_536).unwrap();
    }
    File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .write_all_at(b"LUKS\xba\xbe", 0)
        .unwrap();
    let error = make(&image, FileSystem::Ext4, FormatTarget::Debris)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("LUKS"), "{error}");
}

#[tokio::test]
async fn a_killed_mkfs_is_done_again() {
    for (kind, bytes) in [
        (FileSystem::Ext4, 64 * MIB),
        (FileSystem::Xfs, 300 * MIB),
        (FileSystem::Btrfs, 256 * MIB),
    ] {
        for delay in 0..8 {
            let scratch = Scratch::new();
            let image = scratch.image("image", bytes);
            let flags: &[&str] = match kind {
                FileSystem::Ext4 => &[
                    "-q",
                    "-F",
                    "-m",
                    "0",
                    "-E",
                    "nodiscard,assume_storage_prezeroed=1",
                ],
                FileSystem::Xfs | FileSystem::Btrfs => &["-q", "-f", "-K"],
            };
            let arguments = [flags, &[image.to_str().unwrap()]].concat();
            run_and_kill(kind.maker(), &arguments, Duration::from_millis(delay * 2));
            // Like the caller, who knows that the volume was never used.
            let ground = if is_untouched(&image).unwrap() {
                FormatTarget::Untouched
            } else {
                FormatTarget::Debris
            };
            make(&image, kind, ground).await.unwrap();
            assert!(matches!(probe(&image).unwrap(), Probe::Known(found) if found.kind == kind));
            let image = image.to_str().unwrap();
            match kind {
                FileSystem::Ext4 => run("e2fsck", &["-f", "-n", image]),
                FileSystem::Xfs => run("xfs_repair", &["-n", "-f", image]),
                FileSystem::Btrfs => run("btrfs", &["check", "--readonly", image]),
            };
        }
    }
}

#[tokio::test]
async fn a_file_system_follows_its_device() {
    for (kind, bytes) in [
        (FileSystem::Ext4, 16 * MIB),
        (FileSystem::Xfs, 300 * MIB),
        (FileSystem::Btrfs, 256 * MIB),
    ] {
        let mounted = Mounted::new(kind, bytes);
        let (device, path) = (&mounted.device.path, mounted.path());
        fs::write(path.join("file"), "hello").unwrap();
        assert_eq!(
            grow(device, path, kind).await.unwrap(),
            Growth::Already,
            "{kind}"
        );
        let file = File::options().write(true).open(&mounted.image).unwrap();
        file.set_len(bytes * 2).unwrap();
        assert_eq!(
            grow(device, path, kind).await.unwrap(),
            Growth::Already,
            "{kind}"
        );
        refresh_size(&mounted.device).unwrap();
        if kind == FileSystem::Ext4 && !may_grow_mounted_ext4() {
            let error = grow(device, path, kind).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Precondition);
            assert!(error.to_string().contains("CAP_SYS_RESOURCE"), "{error}");
            unmount(path).unwrap();
            assert_eq!(grow_unmounted(device, kind).await.unwrap(), Growth::Grown);
            mount_device(device, path, kind, &MountOptions::new(kind)).unwrap();
        } else {
            assert_eq!(
                grow(device, path, kind).await.unwrap(),
                Growth::Grown,
                "{kind}"
            );
        }
        assert_eq!(
            grow(device, path, kind).await.unwrap(),
            Growth::Already,
            "{kind}"
        );
        let disk = Disk::of(path).unwrap();
        assert!(disk.total > bytes * 3 / 2, "{kind}: {disk:?}");
        assert_eq!(fs::read(path.join("file")).unwrap(), b"hello");
    }
}

#[tokio::test]
async fn an_ext4_with_a_journal_to_replay_grows_unmounted_and_loses_nothing() {
    let kind = FileSystem::Ext4;
    let mounted = Mounted::new(kind, 16 * MIB);
    fs::write(mounted.path().join("file"), "hello").unwrap();
    // The state after a power cut: everything synced, and a journal.
    nix::unistd::sync();
    let copy = mounted.scratch.path().join("copy");
    fs::copy(&mounted.image, &copy).unwrap();
    File::options()
        .write(true)
        .open(&copy)
        .unwrap()
        .set_len(32 * MIB)
        .unwrap();
    let Probe::Known(before) = probe(&copy).unwrap() else {
        panic!("no ext4");
    };
    assert_eq!(before.is_clean, Some(false));
    assert_eq!(grow_unmounted(&copy, kind).await.unwrap(), Growth::Grown);
    assert_eq!(grow_unmounted(&copy, kind).await.unwrap(), Growth::Already);
    let device = attach(&copy, Access::ReadWrite).unwrap();
    let target = mounted.scratch.directory("copied");
    mount_device(&device.path, &target, kind, &MountOptions::new(kind)).unwrap();
    assert_eq!(fs::read(target.join("file")).unwrap(), b"hello");
    assert!(Disk::of(&target).unwrap().total > 24 * MIB);
}

#[tokio::test]
async fn a_read_only_file_system_stays_as_it_is() {
    let mounted = Mounted::new(FileSystem::Ext4, 16 * MIB);
    unmount(mounted.path()).unwrap();
    let options = MountOptions::new(FileSystem::Ext4).with_access(Access::ReadOnly);
    mount_device(
        &mounted.device.path,
        mounted.path(),
        FileSystem::Ext4,
        &options,
    )
    .unwrap();
    File::options()
        .write(true)
        .open(&mounted.image)
        .unwrap()
        .set_len(32 * MIB)
        .unwrap();
    refresh_size(&mounted.device).unwrap();
    let growth = grow(&mounted.device.path, mounted.path(), FileSystem::Ext4).await;
    assert_eq!(growth.unwrap(), Growth::ReadOnly);
    assert!(Disk::of(mounted.path()).unwrap().is_read_only);
}

#[tokio::test]
async fn a_btrfs_copy_gets_an_id_of_its_own_and_is_mounted_beside_its_source() {
    let kind = FileSystem::Btrfs;
    let mounted = Mounted::new(kind, 128 * MIB);
    fs::write(mounted.path().join("file"), "hello").unwrap();
    let frozen = crate::Frozen::freeze(mounted.path()).unwrap();
    let copy = mounted.scratch.path().join("copy");
    fs::copy(&mounted.image, &copy).unwrap();
    frozen.thaw().unwrap();
    let device = attach(&copy, Access::ReadWrite).unwrap();
    let uuid = |path: &std::path::Path| match probe(path).unwrap() {
        Probe::Known(found) => found.uuid,
        other => panic!("{other:?}"),
    };
    assert_eq!(uuid(&device.path), uuid(&mounted.image));
    new_uuid(&device.path, kind).await.unwrap();
    new_uuid(&device.path, kind).await.unwrap();
    assert_ne!(uuid(&device.path), uuid(&mounted.image));
    let target = mounted.scratch.directory("copied");
    mount_device(&device.path, &target, kind, &MountOptions::new(kind)).unwrap();
    assert_eq!(fs::read(target.join("file")).unwrap(), b"hello");
    fs::write(target.join("file"), "other").unwrap();
    assert_eq!(fs::read(mounted.path().join("file")).unwrap(), b"hello");
}
