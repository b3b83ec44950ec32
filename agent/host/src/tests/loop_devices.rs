//! Loop devices are found again by their backing file, and detach on request.

use std::{fs, fs::File, os::unix::fs::FileExt, thread};

use crate::{
    Access, FileSystem, Kind,
    loop_device::{at, attach, detach, find, list, refresh_size},
    testing::{Mounted, Scratch, format, run},
};

const MIB: u64 = 1 << 20;

fn size_of(device: &std::path::Path) -> u64 {
    run("blockdev", &["--getsize64", device.to_str().unwrap()])
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn a_repeated_attach_finds_the_first_device() {
    let scratch = Scratch::new();
    let image = scratch.image("a b\\#é", MIB);
    let first = attach(&image, Access::ReadWrite).unwrap();
    assert_eq!(attach(&image, Access::ReadWrite).unwrap(), first);
    assert_eq!(find(&image).unwrap(), std::slice::from_ref(&first));
    assert_eq!(first.access, Access::ReadWrite);
    assert_eq!(first.backing.path, image);
    assert!(list().unwrap().contains(&first));
    assert_eq!(at(&first.path).unwrap(), Some(first));
    assert_eq!(at(&image).unwrap(), None);
}

#[test]
fn a_foreign_device_of_the_same_file_is_found_too() {
    let scratch = Scratch::new();
    let image = scratch.image("image", MIB);
    let path = run("losetup", &["--find", "--show", image.to_str().unwrap()]);
    let device = attach(&image, Access::ReadWrite).unwrap();
    assert_eq!(device.path.to_str(), Some(path.trim()));
}

#[test]
fn a_device_is_found_by_another_name_of_its_file() {
    let scratch = Scratch::new();
    let image = scratch.image("image", MIB);
    let device = attach(&image, Access::ReadWrite).unwrap();
    let other = scratch.path().join("other");
    fs::rename(&image, &other).unwrap();
    assert_eq!(
        attach(&other, Access::ReadWrite).unwrap().number,
        device.number
    );
    assert_eq!(find(&image).unwrap(), []);
}

#[test]
fn a_detached_device_is_gone_and_a_repeat_is_fine() {
    let scratch = Scratch::new();
    let image = scratch.image("image", MIB);
    let device = attach(&image, Access::ReadWrite).unwrap();
    detach(&device).unwrap();
    assert_eq!(find(&image).unwrap(), []);
    detach(&device).unwrap();
}

#[test]
fn an_old_answer_does_not_end_another_files_device() {
    let scratch = Scratch::new();
    let device = attach(&scratch.image("one", MIB), Access::ReadWrite).unwrap();
    let mut stale = device.clone();
    stale.backing.inode += 1;
    detach(&stale).unwrap();
    assert_eq!(find(&device.backing.path).unwrap(), [device]);
}

#[test]
fn what_is_written_to_a_device_is_in_its_image() {
    let scratch = Scratch::new();
    let image = scratch.image("image", MIB);
    let device = attach(&image, Access::ReadWrite).unwrap();
    let file = File::options().write(true).open(&device.path).unwrap();
    file.write_all_at(b"hello", 4096).unwrap();
    file.sync_all().unwrap();
    drop(file);
    detach(&device).unwrap();
    assert_eq!(fs::read(&image).unwrap().get(4096..4101).unwrap(), b"hello");
}

#[test]
fn a_read_only_device_refuses_writes_whoever_asks() {
    let scratch = Scratch::new();
    let image = scratch.image("image", MIB);
    let device = attach(&image, Access::ReadOnly).unwrap();
    assert_eq!(device.access, Access::ReadOnly);
    let write = File::options().write(true).open(&device.path);
    assert!(write.and_then(|file| file.write_all_at(b"x", 0)).is_err());
}

#[test]
fn a_device_can_show_another_device_read_only() {
    let scratch = Scratch::new();
    let image = scratch.image("image", MIB);
    let below = attach(&image, Access::ReadWrite).unwrap();
    let above = attach(&below.path, Access::ReadOnly).unwrap();
    assert_ne!(above.number, below.number);
    assert_eq!(attach(&below.path, Access::ReadOnly).unwrap(), above);
    assert_eq!(find(&below.path).unwrap(), std::slice::from_ref(&above));
    assert_eq!(find(&image).unwrap(), std::slice::from_ref(&below));
    let error = detach(&below).unwrap_err();
    assert_eq!(error.kind(), Kind::InUse);
    let text = error.to_string();
    assert!(text.contains(&above.path.display().to_string()), "{text}");
    detach(&above).unwrap();
    detach(&below).unwrap();
}

#[test]
fn a_grown_image_makes_a_grown_device() {
    let scratch = Scratch::new();
    let image = scratch.image("image", MIB);
    let device = attach(&image, Access::ReadWrite).unwrap();
    File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(3 * MIB)
        .unwrap();
    assert_eq!(size_of(&device.path), MIB);
    refresh_size(&device).unwrap();
    assert_eq!(size_of(&device.path), 3 * MIB);
}

#[test]
fn an_open_device_is_in_use_and_stays() {
    let scratch = Scratch::new();
    let image = scratch.image("image", MIB);
    let device = attach(&image, Access::ReadWrite).unwrap();
    let open = File::open(&device.path).unwrap();
    let error = detach(&device).unwrap_err();
    assert_eq!(error.kind(), Kind::InUse);
    assert!(
        error.to_string().contains(&std::process::id().to_string()),
        "{error}"
    );
    drop(open);
    // It was not changed to detach with its last user.
    assert_eq!(find(&image).unwrap(), [device]);
}

#[test]
fn a_mounted_device_is_in_use_and_its_mount_is_named() {
    let mounted = Mounted::new(FileSystem::Ext4, 8 * MIB);
    let error = detach(&mounted.device).unwrap_err();
    assert_eq!(error.kind(), Kind::InUse);
    let target = mounted.path().display().to_string();
    assert!(error.to_string().contains(&target), "{error}");
    assert_eq!(
        find(&mounted.image).unwrap(),
        std::slice::from_ref(&mounted.device)
    );
}

#[test]
fn a_replaced_image_is_reported_and_its_old_device_can_go() {
    let scratch = Scratch::new();
    let image = scratch.image("image", MIB);
    let old = attach(&image, Access::ReadWrite).unwrap();
    fs::remove_file(&image).unwrap();
    scratch.image("image", MIB);
    let error = attach(&image, Access::ReadWrite).unwrap_err();
    assert_eq!(error.kind(), Kind::Precondition);
    assert!(
        error.to_string().contains(&old.path.display().to_string()),
        "{error}"
    );
    let found = find(&image).unwrap();
    assert!(found.len() == 1 && found[0].backing.deleted && found[0].number == old.number);
    detach(&found[0]).unwrap();
    attach(&image, Access::ReadWrite).unwrap();
}

#[test]
fn a_missing_image_and_a_directory_are_errors_that_name_them() {
    let scratch = Scratch::new();
    for name in ["missing", "directory"] {
        let path = scratch.path().join(name);
        if name == "directory" {
            scratch.directory(name);
        }
        let error = attach(&path, Access::ReadOnly).unwrap_err();
        assert!(
            error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
    }
}

#[test]
fn many_at_once_get_a_device_each() {
    let scratch = Scratch::new();
    let images = (0..16)
        .map(|n| scratch.image(&format!("image{n}"), MIB))
        .collect::<Vec<_>>();
    let mut numbers = thread::scope(|scope| {
        let threads = images
            .iter()
            .map(|image| {
                scope.spawn(move || {
                    for _ in 0..5 {
                        let device = attach(image, Access::ReadWrite).unwrap();
                        detach(&device).unwrap();
                    }
                    attach(image, Access::ReadWrite).unwrap().number
                })
            })
            .collect::<Vec<_>>();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), images.len());
}

#[test]
fn a_device_that_would_end_with_its_last_user_is_kept() {
    let scratch = Scratch::new();
    let image = scratch.image("image", 8 * MIB);
    format(FileSystem::Ext4, &image);
    let target = scratch.directory("mnt");
    run(
        "mount",
        &[
            "-o",
            "loop",
            image.to_str().unwrap(),
            target.to_str().unwrap(),
        ],
    );
    assert!(find(&image).unwrap()[0].ends_with_last_user);
    let device = attach(&image, Access::ReadWrite).unwrap();
    assert!(!device.ends_with_last_user);
    run("umount", &[target.to_str().unwrap()]);
    assert_eq!(find(&image).unwrap(), [device]);
}

#[test]
fn direct_io_is_used_where_the_file_system_can() {
    let outer = Mounted::new(FileSystem::Xfs, 320 * MIB);
    let image = outer.path().join("image");
    File::create(&image).unwrap().set_len(MIB).unwrap();
    assert!(attach(&image, Access::ReadWrite).unwrap().direct_io);
}
