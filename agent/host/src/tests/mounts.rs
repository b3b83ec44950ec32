//! Mounts appear exactly as requested or not at all, and a repeated call changes nothing.

use std::{fs, fs::File, path::Path};

use crate::{
    Access, FileSystem, Kind, MountOptions, MountTable, Outcome,
    copy::{Reflink, reflink},
    freeze::{Frozen, Thaw, thaw},
    loop_device::attach,
    mount::{bind, mount_device, unmount},
    testing::{Mounted, Scratch, run},
};

const MIB: u64 = 1 << 20;

fn ext4() -> MountOptions {
    MountOptions::new(FileSystem::Ext4)
}

fn count_at(target: &Path) -> usize {
    MountTable::read().unwrap().all_at(target).count()
}

#[test]
fn a_repeated_mount_and_unmount_change_nothing() {
    for (kind, bytes) in [
        (FileSystem::Ext4, 8 * MIB),
        (FileSystem::Xfs, 300 * MIB),
        (FileSystem::Btrfs, 128 * MIB),
    ] {
        let mounted = Mounted::new(kind, bytes);
        let again = mount_device(
            &mounted.device.path,
            mounted.path(),
            kind,
            &MountOptions::new(kind),
        );
        assert_eq!(again.unwrap(), Outcome::Already, "{kind}");
        assert_eq!(count_at(mounted.path()), 1, "{kind}");
        assert_eq!(unmount(mounted.path()).unwrap(), Outcome::Done, "{kind}");
        assert_eq!(unmount(mounted.path()).unwrap(), Outcome::Already, "{kind}");
    }
}

#[test]
fn a_mount_is_found_through_a_symbolic_link_above_it() {
    let mounted = Mounted::new(FileSystem::Ext4, 8 * MIB);
    let link = mounted.scratch.path().join("link");
    std::os::unix::fs::symlink(mounted.scratch.path(), &link).unwrap();
    let target = link.join("mnt");
    let again = mount_device(&mounted.device.path, &target, FileSystem::Ext4, &ext4());
    assert_eq!(again.unwrap(), Outcome::Already);
    assert_eq!(unmount(&target).unwrap(), Outcome::Done);
}

#[test]
fn a_symbolic_link_is_no_mount_point() {
    let mounted = Mounted::new(FileSystem::Ext4, 8 * MIB);
    let elsewhere = mounted.scratch.directory("elsewhere");
    let link = mounted.scratch.path().join("link");
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    for result in [
        bind(mounted.path(), &link, Access::ReadWrite),
        mount_device(&mounted.device.path, &link, FileSystem::Ext4, &ext4()),
    ] {
        assert_eq!(result.unwrap_err().kind(), Kind::Precondition);
    }
    assert_eq!(count_at(&elsewhere), 0);
}

#[test]
fn other_access_and_other_devices_at_the_same_place_are_told_apart() {
    let one = Mounted::new(FileSystem::Ext4, 8 * MIB);
    let two = Mounted::new(FileSystem::Ext4, 8 * MIB);
    let read_only = ext4().with_access(Access::ReadOnly);
    let error =
        mount_device(&one.device.path, one.path(), FileSystem::Ext4, &read_only).unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    let error = mount_device(&one.device.path, two.path(), FileSystem::Ext4, &ext4()).unwrap_err();
    assert_eq!(error.kind(), Kind::InUse);
    let error = bind(one.path(), two.path(), Access::ReadWrite).unwrap_err();
    assert_eq!(error.kind(), Kind::InUse);
}

#[test]
fn a_bind_mount_is_made_once_and_as_asked_for() {
    let mounted = Mounted::new(FileSystem::Ext4, 8 * MIB);
    let reading = mounted.scratch.directory("reading");
    let writing = mounted.scratch.directory("writing");
    for (target, access) in [(&reading, Access::ReadOnly), (&writing, Access::ReadWrite)] {
        assert_eq!(bind(mounted.path(), target, access).unwrap(), Outcome::Done);
        assert_eq!(
            bind(mounted.path(), target, access).unwrap(),
            Outcome::Already
        );
        assert_eq!(count_at(target), 1);
    }
    let other = bind(mounted.path(), &reading, Access::ReadWrite).unwrap_err();
    assert_eq!(other.kind(), Kind::Conflict);
    fs::write(writing.join("file"), "hello").unwrap();
    assert_eq!(fs::read(reading.join("file")).unwrap(), b"hello");
    let error = fs::write(reading.join("file"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
}

#[test]
fn a_part_of_a_mount_is_not_the_whole_of_it() {
    let mounted = Mounted::new(FileSystem::Ext4, 8 * MIB);
    let part = mounted.path().join("part");
    fs::create_dir(&part).unwrap();
    let target = mounted.scratch.directory("target");
    assert_eq!(
        bind(&part, &target, Access::ReadWrite).unwrap(),
        Outcome::Done
    );
    assert_eq!(
        bind(&part, &target, Access::ReadWrite).unwrap(),
        Outcome::Already
    );
    let error = bind(mounted.path(), &target, Access::ReadWrite).unwrap_err();
    assert_eq!(error.kind(), Kind::InUse);
}

#[test]
fn a_bind_of_a_read_only_mount_cannot_be_writable() {
    let scratch = Scratch::new();
    let image = scratch.image("image", 8 * MIB);
    crate::testing::format(FileSystem::Ext4, &image);
    let device = attach(&image, Access::ReadOnly).unwrap();
    let staging = scratch.directory("staging");
    let target = scratch.directory("target");
    let error = mount_device(&device.path, &staging, FileSystem::Ext4, &ext4()).unwrap_err();
    assert_eq!(error.kind(), Kind::Precondition);
    let options = ext4().with_access(Access::ReadOnly);
    mount_device(&device.path, &staging, FileSystem::Ext4, &options).unwrap();
    let error = bind(&staging, &target, Access::ReadWrite).unwrap_err();
    assert_eq!(error.kind(), Kind::Precondition);
    assert_eq!(count_at(&target), 0);
    assert_eq!(
        bind(&staging, &target, Access::ReadOnly).unwrap(),
        Outcome::Done
    );
}

#[test]
fn a_block_device_is_shown_at_a_file() {
    let scratch = Scratch::new();
    let device = attach(&scratch.image("image", MIB), Access::ReadWrite).unwrap();
    let other = attach(&scratch.image("other", MIB), Access::ReadWrite).unwrap();
    let target = scratch.image("target", 0);
    assert_eq!(
        bind(&device.path, &target, Access::ReadWrite).unwrap(),
        Outcome::Done
    );
    assert_eq!(
        bind(&device.path, &target, Access::ReadWrite).unwrap(),
        Outcome::Already
    );
    let error = bind(&other.path, &target, Access::ReadWrite).unwrap_err();
    assert_eq!(error.kind(), Kind::InUse);
    let number = crate::DeviceNumber::of_block_device(&target).unwrap();
    assert_eq!(
        number,
        crate::DeviceNumber::of_block_device(&device.path).unwrap()
    );
    let table = MountTable::read().unwrap();
    let shown = table
        .of_block_device(&device.path, number)
        .map(|mount| mount.target.clone());
    assert_eq!(shown.collect::<Vec<_>>(), [target]);
}

#[test]
fn a_file_where_a_directory_is_wanted_is_an_error_that_names_it() {
    let mounted = Mounted::new(FileSystem::Ext4, 8 * MIB);
    let file = mounted.scratch.image("file", 0);
    for result in [
        bind(mounted.path(), &file, Access::ReadWrite),
        mount_device(&mounted.device.path, &file, FileSystem::Ext4, &ext4()),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), Kind::Precondition);
        assert!(
            error.to_string().contains(&file.display().to_string()),
            "{error}"
        );
    }
}

#[test]
fn a_used_mount_stays_and_its_user_is_named() {
    let mounted = Mounted::new(FileSystem::Ext4, 8 * MIB);
    let open = File::create(mounted.path().join("file")).unwrap();
    let error = unmount(mounted.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::InUse);
    let text = error.to_string();
    assert!(
        text.contains(&format!("process {}", std::process::id())),
        "{text}"
    );
    assert_eq!(count_at(mounted.path()), 1);
    drop(open);
    unmount(mounted.path()).unwrap();
}

#[test]
fn everything_stacked_at_a_target_goes() {
    let mounted = Mounted::new(FileSystem::Ext4, 8 * MIB);
    run(
        "mount",
        &[
            "-t",
            "tmpfs",
            "drumlin-test",
            mounted.path().to_str().unwrap(),
        ],
    );
    assert_eq!(count_at(mounted.path()), 2);
    assert_eq!(unmount(mounted.path()).unwrap(), Outcome::Done);
    assert_eq!(count_at(mounted.path()), 0);
}

#[test]
fn what_the_kernel_cannot_mount_is_a_precondition() {
    let scratch = Scratch::new();
    let device = attach(&scratch.image("image", 8 * MIB), Access::ReadWrite).unwrap();
    let target = scratch.directory("target");
    let error = mount_device(&device.path, &target, FileSystem::Ext4, &ext4()).unwrap_err();
    assert_eq!(error.kind(), Kind::Precondition, "{error:?}");
    assert_eq!(count_at(&target), 0);
}

#[test]
fn an_xfs_copy_is_mounted_beside_its_source() {
    let mounted = Mounted::new(FileSystem::Xfs, 300 * MIB);
    fs::write(mounted.path().join("file"), "hello").unwrap();
    let copy = mounted.scratch.path().join("copy");
    let frozen = Frozen::freeze(mounted.path()).unwrap();
    fs::copy(&mounted.image, &copy).unwrap();
    frozen.thaw().unwrap();
    let device = attach(&copy, Access::ReadWrite).unwrap();
    let target = mounted.scratch.directory("copied");
    let options = MountOptions::new(FileSystem::Xfs);
    mount_device(&device.path, &target, FileSystem::Xfs, &options).unwrap();
    assert_eq!(fs::read(target.join("file")).unwrap(), b"hello");
}

#[test]
fn a_frozen_file_system_is_thawed_by_drop_by_panic_and_by_hand() {
    let mounted = Mounted::new(FileSystem::Ext4, 8 * MIB);
    let path = mounted.path();
    assert_eq!(thaw(path).unwrap(), Thaw::NotFrozen);
    drop(Frozen::freeze(path).unwrap());
    assert_eq!(thaw(path).unwrap(), Thaw::NotFrozen);
    let panicked = std::panic::catch_unwind(|| {
        let _frozen = Frozen::freeze(path).unwrap();
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(panicked.is_err());
    assert_eq!(thaw(path).unwrap(), Thaw::NotFrozen);
    let frozen = Frozen::freeze(path).unwrap();
    assert_eq!(Frozen::freeze(path).unwrap_err().kind(), Kind::Busy);
    assert_eq!(thaw(path).unwrap(), Thaw::Thawed);
    drop(frozen);
}

#[test]
fn blocks_are_shared_only_on_one_file_system() {
    let one = Mounted::new(FileSystem::Btrfs, 128 * MIB);
    let two = Mounted::new(FileSystem::Btrfs, 128 * MIB);
    let source = one.path().join("source");
    fs::write(&source, [7; 8192]).unwrap();
    let source = File::open(source).unwrap();
    let same = File::create(one.path().join("target")).unwrap();
    let other = File::create(two.path().join("target")).unwrap();
    assert_eq!(reflink(&source, &same).unwrap(), Reflink::Done);
    assert_eq!(reflink(&source, &other).unwrap(), Reflink::Unsupported);
}
