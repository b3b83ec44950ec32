//! Cached lists of images, kept up to date by inotify.
//!
//! Only lists are answered from memory. Reading or changing a single image always reads its files.
//!
//! **Invariant:** a directory is watched before it is read, so that no change falls between the two; no clock and no
//! timestamp granularity is relied on. The kernel queues an event before the system call that made the change
//! returns, so that the next list includes it. An image is cached only if events cover every possible change to it:
//! it is healthy, its directory is not a symbolic link, and its files are regular files with one name each. Any other
//! image is read each time.
//!
//! Three changes have no event: a second name that is given to a file later, and written through; a mapping that is
//! written and stays open; a mount over one image's directory. That is why everything is read again after [`TRUSTED`]
//! regardless.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor},
        statfs::{
            BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC,
            statfs,
        },
    },
};

use super::layout::Layout;
use crate::{
    Result,
    backend::{Health, Image},
    host::lock,
    types::{ImageId, ImageKind, Key},
};

/// Maximum time for which a list is used without being read again.
const TRUSTED: Duration = Duration::from_mins(10);

/// Maximum number of watched images; others are read each time. All programs of root share the kernel's limit, on
/// small hosts 8,192 (`fs.inotify.max_user_watches`), and kubelet and containerd need theirs.
const MOST: usize = 4096;

/// Events of the directory of all images of a kind.
const HOME: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

/// Events of the files of an image. Closing a file after writing counts, because of writes through a mapping.
const IMAGE: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVE)
    .union(AddWatchFlags::IN_MODIFY)
    .union(AddWatchFlags::IN_ATTRIB)
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_ONLYDIR)
    .union(AddWatchFlags::IN_DONT_FOLLOW);

/// Events that invalidate everything: events were lost, or the file system was unmounted.
const LOST: AddWatchFlags = AddWatchFlags::IN_Q_OVERFLOW.union(AddWatchFlags::IN_UNMOUNT);

/// Events that invalidate a directory of images: another one may be at its path.
const MOVED: AddWatchFlags = AddWatchFlags::IN_DELETE_SELF
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_IGNORED);

/// The cached lists of a directory class; none when nothing is cached.
#[derive(Debug, Default)]
pub(super) struct ListCache(Mutex<Option<Watches>>);

#[derive(Debug)]
struct Watches {
    inotify: Inotify,
    /// What each watch is on: the directory of a kind, or that of one image.
    places: HashMap<WatchDescriptor, (ImageKind, Option<Key>)>,
    lists: BTreeMap<ImageKind, List>,
}

/// The cached list of a kind.
#[derive(Debug)]
struct List {
    /// The device and inode of their directory.
    home: (u64, u64),
    read: Instant,
    images: BTreeMap<Key, Image>,
    /// The images that must be read before the next answer.
    stale: BTreeSet<Key>,
}

impl ListCache {
    /// All images of a kind, by key; reads those that may have changed.
    pub(super) fn list(&self, layout: &Layout, kind: ImageKind) -> Result<Vec<Image>> {
        let mut known = lock(&self.0);
        if let Some(watches) = learn(&mut known)
            && watches.current(layout, kind).is_some()
        {
            return watches.refresh(layout, kind);
        }
        if !tells(layout.kind(kind)) {
            return layout.list(kind);
        }
        // An old list of one kind also invalidates those of the others: they are no younger, or cheap to read.
        let has_ended = known
            .as_ref()
            .is_none_or(|watches| watches.lists.contains_key(&kind));
        if has_ended {
            *known = Watches::begin();
        }
        if let Some(watches) = &mut *known
            && watches.watch_home(layout, kind)
        {
            return watches.refresh(layout, kind);
        }
        layout.list(kind)
    }

    /// Drops cached images that have changed since, above all deleted ones: the next list may be far away.
    pub(super) fn tidy(&self) {
        // Whoever has the lock processes the events, too.
        let Ok(mut known) = self.0.try_lock() else {
            return;
        };
        let Some(watches) = learn(&mut known) else {
            return;
        };
        for list in watches.lists.values_mut() {
            list.images.retain(|key, _| !list.stale.contains(key));
        }
    }
}

/// Processes the kernel's events; drops everything when events were lost.
fn learn(known: &mut Option<Watches>) -> Option<&mut Watches> {
    if !known.as_mut()?.take_events() {
        *known = None;
    }
    known.as_mut()
}

impl Watches {
    /// Starts watching, if the host supports it.
    fn begin() -> Option<Self> {
        let flags = InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC;
        Some(Self {
            inotify: Inotify::init(flags).ok()?,
            places: HashMap::new(),
            lists: BTreeMap::new(),
        })
    }

    /// Marks changed images as stale; returns false when events were lost.
    fn take_events(&mut self) -> bool {
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => return true,
                Err(_) => return false,
            };
            for event in events {
                if event.mask.intersects(LOST) {
                    return false;
                }
                // The watch was removed already.
                let Some((kind, key)) = self.places.get(&event.wd).copied() else {
                    continue;
                };
                if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                    self.places.remove(&event.wd);
                }
                let in_home = || Key::parse(event.name.as_ref()?.to_str()?);
                let Some(list) = self.lists.get_mut(&kind) else {
                    continue;
                };
                match key {
                    None if event.mask.intersects(MOVED) => return false,
                    None => list.stale.extend(in_home()),
                    Some(key) => {
                        list.stale.insert(key);
                    }
                }
            }
        }
    }

    /// The list of a kind, if it was read recently and its directory is still at its path.
    fn current(&self, layout: &Layout, kind: ImageKind) -> Option<&List> {
        let list = self.lists.get(&kind)?;
        let is_current =
            list.read.elapsed() < TRUSTED && identity(layout.kind(kind)) == Some(list.home);
        is_current.then_some(list)
    }

    /// Starts the list of a kind, with all entries stale; returns false when it cannot be watched.
    fn watch_home(&mut self, layout: &Layout, kind: ImageKind) -> bool {
        let path = layout.kind(kind);
        let Ok(watch) = self.inotify.add_watch(path, HOME) else {
            return false;
        };
        self.places.insert(watch, (kind, None));
        let (Some(home), Ok(stale)) = (identity(path), layout.keys(kind)) else {
            return false;
        };
        let list = List {
            home,
            read: Instant::now(),
            images: BTreeMap::new(),
            stale,
        };
        self.lists.insert(kind, list);
        true
    }

    /// Reads the stale images, and returns all.
    fn refresh(&mut self, layout: &Layout, kind: ImageKind) -> Result<Vec<Image>> {
        let here = layout.open(kind)?;
        let Some(list) = self.lists.get_mut(&kind) else {
            return layout.list(kind);
        };
        let mut unwatched = BTreeSet::new();
        for key in std::mem::take(&mut list.stale) {
            let id = ImageId { kind, key };
            list.images.remove(&key);
            let is_watched = watch_image(&self.inotify, &mut self.places, layout, id, &list.images);
            let Some(image) = Layout::get_in(&here, id) else {
                continue;
            };
            let is_kept = is_watched && image.health == Health::Good && Layout::is_plain(&here, id);
            if !is_kept {
                unwatched.insert(key);
            }
            list.images.insert(key, image);
        }
        list.stale = unwatched;
        Ok(list.to_vec())
    }
}

/// Watches one image; returns false when events do not cover every change to it.
fn watch_image(
    inotify: &Inotify,
    places: &mut HashMap<WatchDescriptor, (ImageKind, Option<Key>)>,
    layout: &Layout,
    id: ImageId,
    listed: &BTreeMap<Key, Image>,
) -> bool {
    if places.len() >= MOST {
        return false;
    }
    let place = (id.kind, Some(id.key));
    let Ok(watch) = inotify.add_watch(&layout.directory(id), IMAGE) else {
        return false;
    };
    // One directory under two names has one watch, which can only stand for one of them.
    match places.insert(watch, place) {
        Some(before @ (_, Some(other))) if before != place && listed.contains_key(&other) => {
            places.insert(watch, before);
            false
        }
        _ => true,
    }
}

impl List {
    fn to_vec(&self) -> Vec<Image> {
        self.images.values().cloned().collect()
    }
}

/// Returns true if events cover all changes on the file system of `path`. Network file systems and overlays can be
/// changed remotely, or from below.
fn tells(path: &Path) -> bool {
    let known = [
        EXT4_SUPER_MAGIC,
        XFS_SUPER_MAGIC,
        BTRFS_SUPER_MAGIC,
        F2FS_SUPER_MAGIC,
        TMPFS_MAGIC,
    ];
    statfs(path).is_ok_and(|found| known.contains(&found.filesystem_type()))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};

    use super::{super::record::Record, *};
    use crate::{
        backend::Labels,
        types::{Name, Size},
    };

    const VOLUME: ImageKind = ImageKind::Volume;

    /// A directory class with some volumes in it, whose list was read.
    struct Class {
        directory: tempfile::TempDir,
        layout: Layout,
        watched: ListCache,
    }

    fn id(name: &str) -> ImageId {
        ImageId {
            kind: VOLUME,
            key: Key::of(VOLUME, &Name::parse("name", name).unwrap()),
        }
    }

    impl Class {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let layout = Layout::new(directory.path());
            let class = Self {
                directory,
                layout,
                watched: ListCache::default(),
            };
            fs::create_dir(class.layout.kind(VOLUME)).unwrap();
            for name in ["a", "b", "c"] {
                Class::make(&class.layout.directory(id(name)), name);
            }
            assert_eq!(class.list().len(), 3);
            assert!(class.is_unchanged());
            class
        }

        fn make(home: &Path, name: &str) {
            fs::create_dir(home).unwrap();
            File::create(home.join("image"))
                .and_then(|image| image.set_len(1 << 20))
                .unwrap();
            Self::record(name).write(&home.join("record.json")).unwrap();
        }

        fn record(name: &str) -> Record {
            let labels = Labels::from([("name".to_owned(), name.to_owned())]);
            Record::new(Size::from_mebibytes(1), labels)
        }

        fn list(&self) -> Vec<Image> {
            self.watched.list(&self.layout, VOLUME).unwrap()
        }

        /// Returns true if the next list is answered without reading anything.
        fn is_unchanged(&self) -> bool {
            let mut known = self.watched.0.lock().unwrap();
            let watches = learn(&mut known);
            let list = watches.and_then(|watches| watches.current(&self.layout, VOLUME));
            list.is_some_and(|list| list.stale.is_empty())
        }

        /// Changes something, and expects the change in the next list.
        fn sees(&self, what: &str, change: impl FnOnce(&Layout)) {
            let before = self.list();
            change(&self.layout);
            assert!(!self.is_unchanged(), "{what}: nothing was told");
            let after = self.list();
            assert_ne!(before, after, "{what}");
            assert_eq!(after, self.layout.list(VOLUME).unwrap(), "{what}");
        }
    }

    /// Overwrites part of a file with the same number of bytes.
    fn overwrite(path: &Path, from: &str, to: &str) {
        use std::io::Write;
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains(from) && from.len() == to.len());
        let mut file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all(text.replace(from, to).as_bytes()).unwrap();
    }

    #[test]
    fn whatever_somebody_changes_is_in_the_next_list() {
        let class = Class::new();
        let record = class.layout.record(id("a"));
        let image = class.layout.image(id("a"));
        let home = class.layout.directory(id("a"));
        let beside = class.directory.path().join("beside");
        class.sees("a record written over, as long as before", |_| {
            overwrite(&record, "\"a\"", "\"x\"");
        });
        class.sees("the same within the same tick", |_| {
            overwrite(&record, "\"x\"", "\"y\"");
        });
        class.sees("a record replaced", |_| {
            Class::record("z").write(&beside).unwrap();
            fs::rename(&beside, &record).unwrap();
        });
        class.sees("the replacement written over", |_| {
            overwrite(&record, "\"z\"", "\"w\"");
        });
        class.sees("an image made longer", |_| set_length(&image, 2 << 20));
        class.sees("an image truncated", |_| set_length(&image, 4096));
        class.sees("an image removed", |_| fs::remove_file(&image).unwrap());
        class.sees("an image brought back", |_| {
            File::create(&image).unwrap().set_len(1 << 20).unwrap();
        });
        class.sees("a record removed", |_| fs::remove_file(&record).unwrap());
        class.sees("a record brought back", |_| {
            Class::record("a").write(&record).unwrap();
        });
        class.sees("an image moved away", |_| {
            fs::rename(&home, &beside).unwrap();
        });
        class.sees("an image moved here", |_| {
            fs::rename(&beside, &home).unwrap();
        });
        class.sees("an image changed after it was moved", |_| {
            overwrite(&record, "\"a\"", "\"b\"");
        });
        class.sees("an image removed whole", |_| {
            fs::remove_dir_all(&home).unwrap();
            class.watched.tidy();
        });
        class.sees("an image added", |layout| {
            Class::make(&layout.directory(id("d")), "d");
        });
        class.sees("two images that change places", |layout| {
            let (a, b) = (layout.directory(id("b")), layout.directory(id("c")));
            fs::rename(&a, &beside).unwrap();
            fs::rename(&b, &a).unwrap();
            fs::rename(&beside, &b).unwrap();
        });
        class.sees("an image changed that changed its place", |layout| {
            overwrite(&layout.record(id("b")), "\"c\"", "\"e\"");
        });
        class.sees("another directory in the place of all", |layout| {
            let volumes = layout.kind(VOLUME);
            fs::rename(volumes, class.directory.path().join("old")).unwrap();
            fs::create_dir(volumes).unwrap();
        });
        class.list();
        assert!(class.is_unchanged());
    }

    fn set_length(image: &Path, bytes: u64) {
        let image = OpenOptions::new().write(true).open(image).unwrap();
        image.set_len(bytes).unwrap();
    }

    #[test]
    fn what_can_be_changed_from_elsewhere_is_read_each_time() {
        let class = Class::new();
        let elsewhere = class.directory.path().join("elsewhere");
        let record = class.layout.record(id("a"));
        fs::hard_link(&record, &elsewhere).unwrap();
        // A second name has no event; some other change makes the image be read.
        overwrite(&record, "\"a\"", "\"b\"");
        class.list();
        class.sees("a record by its other name", |_| {
            overwrite(&elsewhere, "\"b\"", "\"c\"");
        });
        fs::remove_file(&record).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &record).unwrap();
        class.list();
        class.sees("a record behind a link", |_| {
            overwrite(&elsewhere, "\"c\"", "\"d\"");
        });
        let home = class.layout.directory(id("b"));
        let moved = class.directory.path().join("moved");
        fs::rename(&home, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &home).unwrap();
        class.list();
        class.sees("an image behind a link", |_| {
            overwrite(&moved.join("record.json"), "\"b\"", "\"e\"");
        });
    }

    #[test]
    fn lost_events_have_everything_read_again() {
        let class = Class::new();
        let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let limit: usize = limit.trim().parse().unwrap();
        class.sees("a change after very many others", |layout| {
            // Every other event is of another file: the kernel merges equal ones in a row.
            let [one, other] = ["a", "b"].map(|name| layout.directory(id(name)).join("new"));
            for _ in 0..=limit / 4 {
                File::create(&one).unwrap();
                fs::remove_file(&one).unwrap();
                File::create(&other).unwrap();
                fs::remove_file(&other).unwrap();
            }
            fs::remove_file(layout.image(id("c"))).unwrap();
        });
    }
}
