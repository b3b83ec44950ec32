//! What all passes share: the records, on disk and in memory.
//!
//! A record has several writers: the catalog writes what the manifest says, a pass writes what became of it, and groups
//! and their snapshots write what a volume or a group says of them. None overwrites another's part, so a manifest that
//! changes while a call runs is not lost.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use drumlin_crd::ObjectKey;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use crate::{
    Error,
    blocking::blocking,
    queue::{Lane, Queue},
    record::{Body, Record},
    requests::Requests,
    source::kubernetes::server::Server,
    store::Store,
};

/// So many objects can be written at once; more than there are workers.
const WRITERS: usize = 16;

/// The records, on disk and in memory, and the queue of those to be looked at.
pub(crate) struct Shared {
    pub(crate) state_dir: PathBuf,
    pub(crate) boot: String,
    pub(crate) fail: fn(&str),
    pub(crate) queue: Queue,
    /// What administrators say of objects.
    pub(crate) words: Requests,
    store: Store,
    records: Mutex<Records>,
    doubted: Mutex<HashSet<ObjectKey>>,
    /// The objects of other nodes, each with its node.
    elsewhere: Mutex<HashMap<ObjectKey, String>>,
    /// Who wants to know which records change.
    listeners: Mutex<Vec<mpsc::UnboundedSender<ObjectKey>>>,
    cluster: OnceLock<Followed>,
    /// The kinds of which a server has said what there is, since this start.
    listed: Mutex<HashSet<String>>,
    /// Has the directory looked at again.
    rescan: OnceLock<Arc<Notify>>,
    /// Held from reading a record to having written it; an object always has the same one.
    writers: [Mutex<()>; WRITERS],
    hasher: RandomState,
}

/// The API server that is followed.
struct Followed {
    server: Server,
    mounts: HostMounts,
}

/// How objects of an API server may be mounted on this host.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostMounts {
    /// Below which directories; nowhere when there are none.
    pub(crate) roots: Vec<PathBuf>,
    /// With which options, whatever they ask for.
    pub(crate) options: Vec<String>,
}

#[derive(Default)]
struct Records {
    by_key: HashMap<ObjectKey, Record>,
    /// What is made from an object, or shows it.
    dependants: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl Records {
    fn insert(&mut self, record: Record) {
        let key = record.key();
        let sources = record.sources();
        let before = self.by_key.insert(key.clone(), record);
        let before = before.map(|before| before.sources()).unwrap_or_default();
        if before == sources {
            return;
        }
        self.forget_sources(&key, &before);
        for source in sources {
            self.dependants
                .entry(source)
                .or_default()
                .insert(key.clone());
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        if let Some(record) = self.by_key.remove(key) {
            self.forget_sources(key, &record.sources());
        }
    }

    fn forget_sources(&mut self, key: &ObjectKey, sources: &[ObjectKey]) {
        for source in sources {
            if let Some(dependants) = self.dependants.get_mut(source) {
                dependants.remove(key);
                if dependants.is_empty() {
                    self.dependants.remove(source);
                }
            }
        }
    }
}

impl Shared {
    pub(crate) fn new(store: Store, state_dir: PathBuf, fail: fn(&str)) -> Result<Self, Error> {
        let (loaded, unreadable) = store.load()?;
        for one in unreadable {
            tracing::error!(path = %one.path.display(), error = %one.why, "state file cannot be read; its object is ignored");
        }
        let mut records = Records::default();
        for record in loaded {
            records.insert(record);
        }
        Ok(Self {
            boot: boot(),
            words: Requests::new(&state_dir),
            state_dir,
            fail,
            queue: Queue::default(),
            store,
            records: Mutex::new(records),
            doubted: Mutex::default(),
            elsewhere: Mutex::default(),
            listeners: Mutex::default(),
            cluster: OnceLock::new(),
            listed: Mutex::default(),
            rescan: OnceLock::new(),
            writers: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
        })
    }

    /// An API server is followed, and how its objects may be mounted on this host.
    pub(crate) fn follow_cluster(&self, server: Server, mounts: HostMounts) {
        let _ = self.cluster.set(Followed { server, mounts });
    }

    /// There is a directory of manifests, too, that is looked at again when this is woken.
    pub(crate) fn follow_directory(&self, rescan: Arc<Notify>) {
        let _ = self.rescan.set(rescan);
    }

    /// The server has said which objects of a kind there are: those that are leaving may be taken down.
    pub(crate) fn has_listed(&self, kind: &str) {
        lock(&self.listed).insert(kind.to_owned());
        let is_deleting = |record: &Record| {
            record.kind == kind && record.served().is_some_and(|served| served.is_deleting)
        };
        for key in self.keys_of(is_deleting) {
            self.queue.add(&key, Instant::now());
        }
    }

    /// An object of the server has gone, for which a file may have waited.
    pub(crate) fn look_at_directory(&self) {
        if let Some(rescan) = self.rescan.get() {
            rescan.notify_one();
        }
    }

    /// The API server that is followed.
    pub(crate) fn server(&self) -> Option<&Server> {
        self.cluster.get().map(|followed| &followed.server)
    }

    /// How objects of an API server may be mounted on this host, where one is followed.
    pub(crate) fn host_mounts(&self) -> Option<&HostMounts> {
        self.cluster.get().map(|followed| &followed.mounts)
    }

    /// Has somebody told which records change.
    pub(crate) fn listen(&self, listener: mpsc::UnboundedSender<ObjectKey>) {
        lock(&self.listeners).push(listener);
    }

    pub(crate) fn tell(&self, key: &ObjectKey) {
        lock(&self.listeners).retain(|listener| listener.send(key.clone()).is_ok());
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// One object as it was written last.
    pub(crate) fn record(&self, key: &ObjectKey) -> Option<Record> {
        lock(&self.records).by_key.get(key).cloned()
    }

    /// What `look` says of one object, without a copy of it.
    pub(crate) fn with<T>(&self, key: &ObjectKey, look: impl FnOnce(&Record) -> T) -> Option<T> {
        lock(&self.records).by_key.get(key).map(look)
    }

    /// All objects.
    pub(crate) fn keys(&self) -> Vec<ObjectKey> {
        lock(&self.records).by_key.keys().cloned().collect()
    }

    /// The objects of which `is_meant` says yes.
    pub(crate) fn keys_of(&self, is_meant: impl Fn(&Record) -> bool) -> Vec<ObjectKey> {
        lock(&self.records)
            .by_key
            .iter()
            .filter(|(_, record)| is_meant(record))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// What is made from an object, or shows it.
    pub(crate) fn dependants(&self, key: &ObjectKey) -> Vec<Record> {
        let records = lock(&self.records);
        let keys = records.dependants.get(key).into_iter().flatten();
        keys.filter_map(|key| records.by_key.get(key))
            .cloned()
            .collect()
    }

    /// Whether there is an object of a file that was not destroyed.
    pub(crate) fn has_anything(&self) -> bool {
        lock(&self.records)
            .by_key
            .values()
            .any(|record| record.served().is_none() && !record.drumlin.destroyed)
    }

    /// Writes down what a pass has made of an object, beside what its manifest says by now; wakes those that wait for it.
    pub(crate) fn save(&self, record: &Record) -> Result<(), Error> {
        blocking(|| {
            let key = record.key();
            let writing = self.writing(&key);
            let mut record = record.clone();
            let is_same = |now: &Record| now.drumlin.incarnation == record.drumlin.incarnation;
            let Some(now) = self.record(&key).filter(is_same) else {
                // What a pass has made of the former one is not this one's.
                return Err(Error::Replaced(key.to_string()));
            };
            record.take_over(now);
            self.store.save(&record)?;
            let handle = |record: &Record| match &record.body {
                Body::Volume { status, .. } => status.volume_handle.clone(),
                _ => None,
            };
            let is_made = handle(&record) != self.with(&key, handle).flatten();
            let sources = if is_made {
                record.sources()
            } else {
                Vec::new()
            };
            lock(&self.records).insert(record);
            drop(writing);
            self.tell(&key);
            self.wake_dependants(&key);
            if is_made {
                self.wake_groups(&key);
            }
            for source in sources {
                // A snapshot that shall go has waited for what was made from it.
                if self.with(&source, Record::is_absent) == Some(true) {
                    self.queue.add(&source, Instant::now());
                }
            }
            Ok(())
        })
    }

    /// Writes down an object that is new, in the place of any other one of its name.
    pub(crate) fn put(&self, record: &Record) -> Result<(), Error> {
        blocking(|| {
            let key = record.key();
            let writing = self.writing(&key);
            self.store.save(record)?;
            lock(&self.records).insert(record.clone());
            drop(writing);
            self.tell(&key);
            self.wake_dependants(&key);
            Ok(())
        })
    }

    /// Writes down what the manifests say of an object, beside what has become of it by now.
    /// `change` says whether there is anything new; so does this.
    pub(crate) fn edit(
        &self,
        key: &ObjectKey,
        change: impl FnOnce(&mut Record) -> bool,
    ) -> Result<bool, Error> {
        blocking(|| {
            let writing = self.writing(key);
            let Some(mut record) = self.record(key) else {
                return Ok(false);
            };
            if !change(&mut record) {
                return Ok(false);
            }
            self.store.save(&record)?;
            lock(&self.records).insert(record);
            drop(writing);
            self.tell(key);
            self.wake_dependants(key);
            Ok(true)
        })
    }

    /// Forgets an object.
    pub(crate) fn forget(&self, key: &ObjectKey) -> Result<(), Error> {
        blocking(|| {
            let groups = self.groups_about(key);
            let _writing = self.writing(key);
            self.store.remove(key)?;
            lock(&self.records).remove(key);
            self.tell(key);
            self.look_again(&groups);
            Ok(())
        })
    }

    /// What an object held is free: those that wait for that may go on.
    pub(crate) fn wake_waiting(&self) {
        let is_waiting = |record: &Record| {
            let reason = record.condition("Ready").map(|ready| ready.reason.as_str());
            matches!(reason, Some("InsufficientCapacity" | "DeletionBlocked"))
        };
        for key in self.keys_of(is_waiting) {
            self.queue.add(&key, Instant::now());
        }
    }

    /// A volume or a group has changed, come or gone: the groups are looked at whose members may be others by that.
    pub(crate) fn wake_groups(&self, key: &ObjectKey) {
        self.look_again(&self.groups_about(key));
    }

    fn look_again(&self, keys: &[ObjectKey]) {
        for key in keys {
            self.doubt(key);
            self.queue.add(key, Instant::now());
        }
    }

    /// The groups that a volume may be in or join, or that may want what a group wants.
    fn groups_about(&self, key: &ObjectKey) -> Vec<ObjectKey> {
        if key.kind == "VolumeGroup" {
            let group = self.record(key);
            let may_rival = |other: &Record| group.as_ref().is_some_and(|own| own.may_rival(other));
            return self.keys_of(may_rival);
        }
        if key.kind != "Volume" {
            return Vec::new();
        }
        let handle = self.with(key, |record| match &record.body {
            Body::Volume { status, .. } => status.volume_handle.clone(),
            _ => None,
        });
        let handle = handle.flatten();
        self.keys_of(|record| {
            let Body::Group { spec, status } = &record.body else {
                return false;
            };
            let mut members = spec.members.iter().flatten();
            let may_mean = spec.selector.is_some() || members.any(|member| member.name == key.name);
            let is_near = record.metadata.namespace.as_ref() == Some(&key.namespace);
            let mut inside = status.members.iter();
            (is_near && may_mean)
                || handle.is_some() && inside.any(|member| member.volume_handle == handle)
        })
    }

    /// Notes that an object is another node's; the groups that may want it can say so.
    pub(crate) fn note_elsewhere(&self, key: &ObjectKey, node: &str) {
        let before = lock(&self.elsewhere).insert(key.clone(), node.to_owned());
        if before.as_deref() != Some(node) {
            self.wake_groups(key);
        }
    }

    /// Forgets the objects of other nodes that are in no manifest any more.
    pub(crate) fn keep_elsewhere(&self, is_there: impl Fn(&ObjectKey) -> bool) {
        lock(&self.elsewhere).retain(|key, _| is_there(key));
    }

    /// The other node that an object belongs to, where a manifest says so.
    pub(crate) fn node_elsewhere(&self, key: &ObjectKey) -> Option<String> {
        lock(&self.elsewhere).get(key).cloned()
    }

    /// What was made may be gone; it is looked for again.
    pub(crate) fn doubt(&self, key: &ObjectKey) {
        lock(&self.doubted).insert(key.clone());
    }

    /// Whether what was made may be gone, and is still to be looked for.
    pub(crate) fn is_doubted(&self, key: &ObjectKey) -> bool {
        lock(&self.doubted).contains(key)
    }

    /// Whether what was made may be gone; whoever asks looks for it, and doubts again if it cannot.
    pub(crate) fn take_doubt(&self, key: &ObjectKey) -> bool {
        lock(&self.doubted).remove(key)
    }

    /// Whether there may be something to do for an object: if not, nothing is called.
    pub(crate) fn needs_work(&self, record: &Record) -> bool {
        if record.drumlin.orphan_since.is_some() || record.is_paused() {
            return false;
        }
        // Whether it is to go still is known when the server has been heard.
        let is_deleting = record.served().is_some_and(|served| served.is_deleting);
        if is_deleting && !lock(&self.listed).contains(&record.kind) {
            return false;
        }
        !record.is_settled()
            || record.lacks_finalizer()
            || self.is_unproven(record)
            || self.is_held_otherwise(record)
            || lock(&self.doubted).contains(&record.key())
    }

    /// Whether it was mounted in an earlier boot, and not seen to be so in this one.
    fn is_unproven(&self, record: &Record) -> bool {
        let book = &record.drumlin;
        book.mounted.is_some() && book.boot.as_deref() != Some(self.boot.as_str())
    }

    /// Whether it is mounted with other options than its host allows by now.
    fn is_held_otherwise(&self, record: &Record) -> bool {
        let must_hold = record.served().and(self.host_mounts());
        record.drumlin.mounted.is_some()
            && must_hold.is_some_and(|mounts| {
                let holds = record.drumlin.confined.as_ref();
                holds.is_none_or(|holds| holds.options != mounts.options)
            })
    }

    /// How urgent the work on an object is.
    pub(crate) fn lane(&self, key: &ObjectKey) -> Lane {
        let lane = self.with(key, |record| match record {
            _ if record.is_absent() => Lane::Removal,
            _ if self.is_unproven(record) => Lane::Mount,
            _ => Lane::Making,
        });
        lane.unwrap_or(Lane::Making)
    }

    fn wake_dependants(&self, key: &ObjectKey) {
        let records = lock(&self.records);
        let waiting: Vec<ObjectKey> = records
            .dependants
            .get(key)
            .into_iter()
            .flatten()
            .filter(|key| {
                records
                    .by_key
                    .get(key)
                    .is_some_and(|record| !record.is_settled())
            })
            .cloned()
            .collect();
        drop(records);
        for key in waiting {
            self.queue.add(&key, Instant::now());
        }
    }

    fn writing(&self, key: &ObjectKey) -> MutexGuard<'_, ()> {
        let place = self.hasher.hash_one(key) % 16;
        let writer = usize::try_from(place)
            .ok()
            .and_then(|place| self.writers.get(place));
        lock(writer.unwrap_or(&OTHERS))
    }
}

/// Every remainder of 16 has a lock of its own; the types do not say so.
static OTHERS: Mutex<()> = Mutex::new(());

/// What tells this boot from others: after another one, no mount is there.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// The lock of a mutex; what a thread that panicked left is whole, for it is replaced in one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
