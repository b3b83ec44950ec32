//! The shared suite: the behaviour required of every back end, tested on each of them.
//!
//! A behaviour is written once, as a function of a back end; the table at the end runs it on all.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Backend, Change, Health, ImageSpec, LabelChange, Labels, Origin,
    directory::{Allocation, Directory, DirectorySettings, Missing},
};
use crate::{
    Kind,
    host::{Access, FileSystem, loop_device, testing::Mounted},
    types::{ImageId, ImageKind, Key, Name, Size},
};

/// A back end on separate storage.
struct Subject {
    backend: Arc<dyn Backend>,
    storage: Storage,
}

/// The storage of a subject's images.
enum Storage {
    Directory {
        path: PathBuf,
        _mounted: Mounted,
    },
    #[cfg(feature = "lab")]
    Lab {
        _lab: super::lvm::testing::Lab,
    },
}

impl Subject {
    /// Uses up the free space until only `leave` bytes are left; [`Subject::empty`] frees it.
    async fn fill(&self, leave: u64) {
        let room = self.backend.capacity().await.unwrap().available.bytes();
        let bytes = room.saturating_sub(leave);
        match &self.storage {
            Storage::Directory { path, .. } => {
                let file = File::create(path.join("filler")).unwrap();
                crate::host::copy::preallocate(&file, bytes).unwrap();
            }
            #[cfg(feature = "lab")]
            Storage::Lab { .. } => {
                let spec = blank("filler", u32::try_from(bytes >> 20).unwrap());
                create(&*self.backend, &spec).await.unwrap();
            }
        }
    }

    async fn empty(&self) {
        match &self.storage {
            Storage::Directory { path, .. } => std::fs::remove_file(path.join("filler")).unwrap(),
            #[cfg(feature = "lab")]
            Storage::Lab { .. } => {
                let change = self.backend.delete(blank("filler", 1).id).await.unwrap();
                assert!(change.is_made());
            }
        }
    }
}

impl Drop for Subject {
    /// Detaches the devices that a test left attached, so that the storage below can be removed.
    fn drop(&mut self) {
        let path = match &self.storage {
            Storage::Directory { path, .. } => path,
            #[cfg(feature = "lab")]
            Storage::Lab { .. } => return,
        };
        for device in loop_device::list().unwrap_or_default() {
            if device.backing.path.starts_with(path) {
                let _ = loop_device::detach(&device);
            }
        }
    }
}

/// A thin class on a separate pool.
#[cfg(feature = "lab")]
fn thin(disks: usize) -> Subject {
    let lab = super::lvm::testing::Lab::new(disks, 1200 / u64::try_from(disks).unwrap());
    lab.pool("pool", 800);
    Subject {
        backend: Arc::new(lab.thin("pool", 100)),
        storage: Storage::Lab { _lab: lab },
    }
}

/// A thick class on separate disks.
#[cfg(feature = "lab")]
fn thick(disks: usize, layout: super::lvm::Layout) -> Subject {
    let lab = super::lvm::testing::Lab::new(disks, 1000);
    Subject {
        backend: Arc::new(lab.thick(layout)),
        storage: Storage::Lab { _lab: lab },
    }
}

/// Creates an image completely.
async fn create(backend: &dyn Backend, spec: &ImageSpec) -> crate::Result<Change<super::Image>> {
    let made = backend.create(spec).await?;
    backend.finish(spec).await?;
    Ok(made)
}

/// A directory class on a fresh file system.
fn directory(storage: FileSystem, allocation: Allocation) -> Subject {
    let scratch = Mounted::new(storage, 600 << 20);
    let path = scratch.path().join("images");
    Subject {
        backend: Arc::new(open(&path, allocation)),
        storage: Storage::Directory {
            path,
            _mounted: scratch,
        },
    }
}

fn open(path: &Path, allocation: Allocation) -> Directory {
    Directory::new(DirectorySettings {
        path: path.to_owned(),
        allocation,
        file_system: FileSystem::Ext4,
        missing: Missing::Create,
        memory: None,
        longest_freeze: None,
        node: "n".parse().unwrap(),
        adoption: crate::ops::adoption(Vec::new()),
    })
}

const MIB: u64 = 1 << 20;

fn id(kind: ImageKind, name: &str) -> ImageId {
    ImageId {
        kind,
        key: Key::of(kind, &Name::parse("name", name).unwrap()),
    }
}

/// The device of an image, attached and not held: it can be detached again.
async fn attached(subject: &Subject, id: ImageId, access: Access) -> PathBuf {
    let device = subject.backend.attach(id, access).await.unwrap();
    device.to_path_buf()
}

fn blank(name: &str, mebibytes: u32) -> ImageSpec {
    ImageSpec {
        id: id(ImageKind::Volume, name),
        size: Size::from_mebibytes(mebibytes),
        labels: Labels::from([("name".to_owned(), name.to_owned())]),
        origin: Origin::Blank,
    }
}

fn copy(kind: ImageKind, name: &str, of: &ImageSpec, mebibytes: u32) -> ImageSpec {
    ImageSpec {
        id: id(kind, name),
        size: Size::from_mebibytes(mebibytes),
        labels: Labels::new(),
        origin: Origin::CopyOf(of.id),
    }
}

/// Writes through the block device of an image, and detaches it.
async fn write(subject: &Subject, id: ImageId, bytes: &[u8], offset: u64) {
    let device = attached(subject, id, Access::ReadWrite).await;
    let file = File::options().write(true).open(&device).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
    drop(file);
    subject.backend.detach(id).await.unwrap();
}

/// Reads through the block device of an image.
async fn read(subject: &Subject, id: ImageId, length: usize, offset: u64) -> Vec<u8> {
    let device = attached(subject, id, Access::ReadOnly).await;
    let mut bytes = vec![0xff; length];
    File::open(&device)
        .unwrap()
        .read_exact_at(&mut bytes, offset)
        .unwrap();
    subject.backend.detach(id).await.unwrap();
    bytes
}

async fn a_new_image_reads_as_zeros_and_keeps_its_labels(subject: Subject) {
    let spec = blank("a", 16);
    let made = create(&*subject.backend, &spec).await.unwrap();
    assert!(made.is_made());
    let image = made.into_inner();
    assert_eq!((image.id, image.size), (spec.id, spec.size));
    assert_eq!(
        (&image.labels, &image.health),
        (&spec.labels, &Health::Good)
    );
    assert_eq!(
        subject.backend.get(spec.id).await.unwrap(),
        Some(image.clone())
    );
    assert_eq!(
        subject.backend.list(ImageKind::Volume).await.unwrap(),
        [image]
    );
    assert_eq!(subject.backend.list(ImageKind::Snapshot).await.unwrap(), []);
    let end = spec.size.bytes() - 4096;
    assert_eq!(read(&subject, spec.id, 4096, end).await, vec![0; 4096]);
}

async fn a_repeated_create_finds_the_first_image_as_it_is(subject: Subject) {
    let spec = blank("a", 16);
    create(&*subject.backend, &spec).await.unwrap();
    write(&subject, spec.id, b"precious", 4096).await;
    let larger = ImageSpec {
        size: Size::from_mebibytes(32),
        ..spec.clone()
    };
    let again = create(&*subject.backend, &larger).await.unwrap();
    assert!(!again.is_made());
    assert_eq!(again.into_inner().size, spec.size);
    assert_eq!(read(&subject, spec.id, 8, 4096).await, b"precious");
}

async fn a_copy_has_the_bytes_of_its_moment(subject: Subject) {
    let source = blank("source", 16);
    create(&*subject.backend, &source).await.unwrap();
    write(&subject, source.id, b"before", 5 * MIB).await;
    let snapshot = copy(ImageKind::Snapshot, "snapshot", &source, 16);
    create(&*subject.backend, &snapshot).await.unwrap();
    write(&subject, source.id, b"after!", 5 * MIB).await;
    let restored = copy(ImageKind::Volume, "restored", &snapshot, 24);
    create(&*subject.backend, &restored).await.unwrap();
    assert_eq!(read(&subject, snapshot.id, 6, 5 * MIB).await, b"before");
    assert_eq!(read(&subject, restored.id, 6, 5 * MIB).await, b"before");
    assert_eq!(read(&subject, restored.id, 8, 20 * MIB).await, [0; 8]);
    assert_eq!(read(&subject, source.id, 6, 5 * MIB).await, b"after!");
    write(&subject, restored.id, b"mine", 5 * MIB).await;
    assert_eq!(read(&subject, snapshot.id, 6, 5 * MIB).await, b"before");
}

async fn a_copy_of_an_attached_image_has_what_was_written_to_its_device(subject: Subject) {
    let source = blank("source", 16);
    create(&*subject.backend, &source).await.unwrap();
    let device = attached(&subject, source.id, Access::ReadWrite).await;
    let file = File::options().write(true).open(&device).unwrap();
    file.write_all_at(b"unsynced", MIB).unwrap();
    let snapshot = copy(ImageKind::Snapshot, "snapshot", &source, 16);
    create(&*subject.backend, &snapshot).await.unwrap();
    drop(file);
    assert_eq!(read(&subject, snapshot.id, 8, MIB).await, b"unsynced");
}

async fn growth_keeps_the_bytes_and_reaches_the_device(subject: Subject) {
    let spec = blank("a", 16);
    create(&*subject.backend, &spec).await.unwrap();
    write(&subject, spec.id, b"kept", MIB).await;
    let device = attached(&subject, spec.id, Access::ReadWrite).await;
    let to = Size::from_mebibytes(40);
    assert!(subject.backend.grow(spec.id, to).await.unwrap().is_made());
    let end = std::io::Seek::seek(&mut File::open(&device).unwrap(), std::io::SeekFrom::End(0));
    assert_eq!(end.unwrap(), to.bytes());
    let again = subject
        .backend
        .grow(spec.id, Size::from_mebibytes(20))
        .await
        .unwrap();
    assert!(matches!(again, Change::Already(image) if image.size == to));
    subject.backend.detach(spec.id).await.unwrap();
    assert_eq!(read(&subject, spec.id, 4, MIB).await, b"kept");
}

async fn labels_change_in_one_step_and_a_change_that_changes_nothing_is_none(subject: Subject) {
    let spec = blank("a", 1);
    create(&*subject.backend, &spec).await.unwrap();
    let mut change = LabelChange::set("größe", "日本\n\"\\");
    change.remove.push("name".to_owned());
    assert!(
        subject
            .backend
            .relabel(spec.id, &change)
            .await
            .unwrap()
            .is_made()
    );
    assert!(
        !subject
            .backend
            .relabel(spec.id, &change)
            .await
            .unwrap()
            .is_made()
    );
    let image = subject.backend.get(spec.id).await.unwrap().unwrap();
    assert_eq!(image.labels, change.set);
    let missing = id(ImageKind::Volume, "missing");
    let error = subject.backend.relabel(missing, &change).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

async fn attaching_twice_gives_one_device_and_detaching_twice_is_no_error(subject: Subject) {
    let spec = blank("a", 4);
    create(&*subject.backend, &spec).await.unwrap();
    let first = attached(&subject, spec.id, Access::ReadWrite).await;
    let second = attached(&subject, spec.id, Access::ReadWrite).await;
    assert_eq!(first, second);
    let devices = vec![first];
    assert_eq!(subject.backend.devices(spec.id).await.unwrap(), devices);
    let keeps = subject.backend.features().await.unwrap().keeps_devices;
    let detached = subject.backend.detach(spec.id).await.unwrap();
    assert_eq!(detached.is_made(), !keeps);
    assert!(!subject.backend.detach(spec.id).await.unwrap().is_made());
    assert_eq!(
        subject.backend.devices(spec.id).await.unwrap(),
        if keeps { devices } else { Vec::new() }
    );
}

async fn deleting_frees_the_device_and_the_room_and_twice_is_no_error(subject: Subject) {
    let spec = blank("a", 64);
    create(&*subject.backend, &spec).await.unwrap();
    attached(&subject, spec.id, Access::ReadWrite).await;
    assert!(subject.backend.delete(spec.id).await.unwrap().is_made());
    assert!(!subject.backend.delete(spec.id).await.unwrap().is_made());
    assert_eq!(subject.backend.get(spec.id).await.unwrap(), None);
    assert_eq!(subject.backend.list(ImageKind::Volume).await.unwrap(), []);
    // The name can be reused, and the new volume exposes no former contents.
    create(&*subject.backend, &spec).await.unwrap();
    assert_eq!(read(&subject, spec.id, 4096, 0).await, vec![0; 4096]);
}

async fn a_renamed_image_keeps_its_bytes_and_leaves_its_name_to_another(subject: Subject) {
    let (spec, backend) = (blank("a", 4), &subject.backend);
    // In whole stripes where there are some.
    let size = create(&**backend, &spec).await.unwrap().into_inner().size;
    write(&subject, spec.id, b"deleted", 4096).await;
    let trash = id(ImageKind::Trash, "a");
    let change = LabelChange::set("trashed", "1");
    let image = backend.rename(spec.id, trash, &change).await.unwrap();
    assert!(image.is_made());
    let again = backend.rename(spec.id, trash, &change).await.unwrap();
    assert_eq!(again, Change::Already(image.into_inner()));
    assert_eq!(backend.get(spec.id).await.unwrap(), None);
    assert!(backend.list(ImageKind::Volume).await.unwrap().is_empty());
    let [kept] = &backend.list(ImageKind::Trash).await.unwrap()[..] else {
        panic!("one image");
    };
    assert_eq!((kept.id, kept.size), (trash, size));
    assert_eq!(kept.labels["trashed"], "1");
    create(&**backend, &spec).await.unwrap();
    assert_eq!(read(&subject, spec.id, 7, 4096).await, [0; 7]);
    let back = LabelChange::remove("trashed");
    let error = backend.rename(trash, spec.id, &back).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    let other = id(ImageKind::Volume, "b");
    let image = backend
        .rename(trash, other, &back)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(image.labels.get("trashed"), None);
    assert_eq!(read(&subject, other, 7, 4096).await, b"deleted");
    let error = backend.rename(trash, other, &back).await;
    assert!(!error.unwrap().is_made());
    backend.rename(other, trash, &change).await.unwrap();
    assert!(backend.delete(trash).await.unwrap().is_made());
    assert!(backend.list(ImageKind::Trash).await.unwrap().is_empty());
    assert!(backend.get(spec.id).await.unwrap().is_some());
}

async fn an_open_device_keeps_its_image(subject: Subject) {
    let spec = blank("a", 4);
    create(&*subject.backend, &spec).await.unwrap();
    let device = attached(&subject, spec.id, Access::ReadWrite).await;
    let held = File::open(&device).unwrap();
    let error = subject.backend.delete(spec.id).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InUse, "{error:?}");
    drop(held);
    assert!(subject.backend.get(spec.id).await.unwrap().is_some());
    subject.backend.delete(spec.id).await.unwrap();
}

async fn without_room_nothing_is_left_behind(subject: Subject) {
    let before = subject.backend.capacity().await.unwrap();
    let error = create(&*subject.backend, &blank("huge", 1 << 20))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace, "{error:?}");
    // A copy that runs out of space half-way: the part that it wrote is removed.
    let source = blank("source", 350);
    create(&*subject.backend, &source).await.unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let device = attached(&subject, source.id, Access::ReadWrite).await;
    let file = File::options().write(true).open(&device).unwrap();
    for step in 0..350 {
        file.write_all_at(&bytes, step * MIB).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    subject.backend.detach(source.id).await.unwrap();
    subject.fill(20 * MIB).await;
    let clone = copy(ImageKind::Volume, "clone", &source, 350);
    match create(&*subject.backend, &clone).await {
        // Shared blocks need no space.
        Ok(_) => drop(subject.backend.delete(clone.id).await.unwrap()),
        Err(error) => assert_eq!(error.kind(), Kind::NoSpace, "{error:?}"),
    }
    assert_eq!(subject.backend.get(clone.id).await.unwrap(), None);
    subject.empty().await;
    subject.backend.delete(source.id).await.unwrap();
    // xfs frees the blocks of a removed file in the background.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let after = subject.backend.capacity().await.unwrap().available.bytes();
        let lost = before.available.bytes().saturating_sub(after);
        if lost < 4 * MIB {
            return;
        }
        assert!(Instant::now() < deadline, "{lost} bytes are gone");
        tokio::task::yield_now().await;
    }
}

async fn the_largest_volume_that_is_offered_can_be_made(subject: Subject) {
    let largest = subject.backend.capacity().await.unwrap().largest;
    let spec = ImageSpec {
        size: largest,
        ..blank("largest", 1)
    };
    assert_eq!(
        create(&*subject.backend, &spec)
            .await
            .unwrap()
            .into_inner()
            .size,
        largest
    );
}

async fn what_is_used_and_promised_is_told_with_the_capacity(subject: Subject) {
    let backend = &*subject.backend;
    let before = backend.utilization().await.unwrap();
    assert_eq!((before.volumes, before.space.promised.bytes()), (0, 0));
    let volumes = [blank("one", 16), blank("two", 32)];
    for volume in &volumes {
        create(backend, volume).await.unwrap();
    }
    let taken = copy(ImageKind::Snapshot, "snapshot", &volumes[0], 16);
    create(backend, &taken).await.unwrap();
    let now = backend.utilization().await.unwrap();
    assert_eq!(now.volumes, 2);
    assert!(now.space.promised >= Size::from_mebibytes(48), "{now:?}");
    assert_eq!(now.capacity, backend.capacity().await.unwrap());
    assert_eq!(now.space.size, before.space.size);
    assert!(now.space.size >= now.capacity.available, "{now:?}");
    assert!(now.space.data_percent >= before.space.data_percent);
}

async fn a_rolled_back_volume_has_the_bytes_of_its_snapshot(subject: Subject) {
    let backend = &*subject.backend;
    let volume = blank("volume", 16);
    create(backend, &volume).await.unwrap();
    write(&subject, volume.id, b"oldest", 5 * MIB).await;
    let oldest = copy(ImageKind::Snapshot, "oldest", &volume, 16);
    create(backend, &oldest).await.unwrap();
    write(&subject, volume.id, b"before", 5 * MIB).await;
    let before = copy(ImageKind::Snapshot, "before", &volume, 16);
    create(backend, &before).await.unwrap();
    write(&subject, volume.id, b"after!", 5 * MIB).await;
    write(&subject, volume.id, b"added!", 9 * MIB + 512).await;
    let after = copy(ImageKind::Snapshot, "after", &volume, 16);
    create(backend, &after).await.unwrap();
    let grown = Size::from_mebibytes(32);
    backend.grow(volume.id, grown).await.unwrap();
    let shows = async |id, words: [&[u8]; 2]| {
        assert_eq!(read(&subject, id, 6, 5 * MIB).await, words[0], "{id}");
        assert_eq!(read(&subject, id, 6, 9 * MIB + 512).await, words[1], "{id}");
    };
    let pairs = [(volume.id, before.id)];
    for _ in 0..2 {
        backend.check_rollback(&pairs).await.unwrap();
        backend.roll_back(volume.id, before.id).await.unwrap();
        shows(volume.id, [b"before", &[0; 6]]).await;
    }
    let size = backend.get(volume.id).await.unwrap().unwrap().size;
    assert_eq!(size, grown);
    let end = grown.bytes() - 4096;
    write(&subject, volume.id, b"end", end).await;
    // Whatever happens to the volume, the snapshots do not change.
    write(&subject, volume.id, b"newer!", 5 * MIB).await;
    shows(oldest.id, [b"oldest", &[0; 6]]).await;
    shows(before.id, [b"before", &[0; 6]]).await;
    shows(after.id, [b"after!", b"added!"]).await;
    // Forward, and further back than before.
    for (snapshot, words) in [
        (after.id, [b"after!", b"added!"]),
        (oldest.id, [b"oldest", &[0; 6]]),
    ] {
        backend.roll_back(volume.id, snapshot).await.unwrap();
        shows(volume.id, [words[0], words[1]]).await;
    }
}

async fn a_volume_in_use_is_not_rolled_back(subject: Subject) {
    let volume = blank("volume", 16);
    create(&*subject.backend, &volume).await.unwrap();
    let snapshot = copy(ImageKind::Snapshot, "snapshot", &volume, 16);
    create(&*subject.backend, &snapshot).await.unwrap();
    write(&subject, volume.id, b"precious", MIB).await;
    let device = attached(&subject, volume.id, Access::ReadWrite).await;
    let open = File::open(device).unwrap();
    let pairs = [(volume.id, snapshot.id)];
    let checked = subject.backend.check_rollback(&pairs).await;
    assert_eq!(checked.unwrap_err().kind(), Kind::InUse);
    let given = subject.backend.roll_back(volume.id, snapshot.id).await;
    assert_eq!(given.unwrap_err().kind(), Kind::InUse);
    drop(open);
    assert_eq!(read(&subject, volume.id, 8, MIB).await, b"precious");
    // A snapshot of another volume.
    let other = blank("other", 24);
    create(&*subject.backend, &other).await.unwrap();
    let pairs = [(volume.id, other.id)];
    let checked = subject.backend.check_rollback(&pairs).await;
    assert_eq!(checked.unwrap_err().kind(), Kind::Precondition);
}

macro_rules! suite {
    ($($behaviour:ident),* $(,)?) => {
        mod directory_on_ext4 { suite!(@ FileSystem::Ext4, Allocation::Thin, $($behaviour),*); }
        mod directory_on_xfs { suite!(@ FileSystem::Xfs, Allocation::Thin, $($behaviour),*); }
        mod thick_directory_on_ext4 { suite!(@ FileSystem::Ext4, Allocation::Thick, $($behaviour),*); }
        mod thick_directory_on_xfs { suite!(@ FileSystem::Xfs, Allocation::Thick, $($behaviour),*); }
        #[cfg(feature = "lab")]
        mod lvm_thin_on_one_disk { suite!(= super::thin(1), $($behaviour),*); }
        #[cfg(feature = "lab")]
        mod lvm_thin_on_three_disks { suite!(= super::thin(3), $($behaviour),*); }
        #[cfg(feature = "lab")]
        mod lvm_linear { suite!(= super::thick(1, crate::backend::lvm::Layout::Linear), $($behaviour),*); }
        #[cfg(feature = "lab")]
        mod lvm_striped { suite!(= super::thick(2, crate::backend::lvm::Layout::Striped(2)), $($behaviour),*); }
        #[cfg(feature = "lab")]
        mod lvm_raid1 { suite!(= super::thick(2, crate::backend::lvm::Layout::Mirrored(1)), $($behaviour),*); }
    };
    (@ $storage:expr, $allocation:expr, $($behaviour:ident),*) => {
        use super::{Allocation, FileSystem};
        suite!(= super::directory($storage, $allocation), $($behaviour),*);
    };
    (= $subject:expr, $($behaviour:ident),*) => {
        $(
            #[tokio::test]
            async fn $behaviour() {
                super::$behaviour($subject).await;
            }
        )*
    };
}

suite!(
    a_new_image_reads_as_zeros_and_keeps_its_labels,
    a_repeated_create_finds_the_first_image_as_it_is,
    a_copy_has_the_bytes_of_its_moment,
    a_copy_of_an_attached_image_has_what_was_written_to_its_device,
    growth_keeps_the_bytes_and_reaches_the_device,
    labels_change_in_one_step_and_a_change_that_changes_nothing_is_none,
    attaching_twice_gives_one_device_and_detaching_twice_is_no_error,
    deleting_frees_the_device_and_the_room_and_twice_is_no_error,
    a_renamed_image_keeps_its_bytes_and_leaves_its_name_to_another,
    an_open_device_keeps_its_image,
    without_room_nothing_is_left_behind,
    the_largest_volume_that_is_offered_can_be_made,
    what_is_used_and_promised_is_told_with_the_capacity,
    a_rolled_back_volume_has_the_bytes_of_its_snapshot,
    a_volume_in_use_is_not_rolled_back,
);
