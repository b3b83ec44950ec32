//! The state that all passes share: the records, on disk and in memory.
//!
//! A record has several writers: the ingest writes the manifest, a pass writes the status, and groups and their
//! snapshots write their part of the status of a volume or a group. None overwrites the part of another, so a manifest
//! that changes during a call is not lost.

mod waking;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use drumlin_crd::ObjectKey;
use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use crate::{
    Error, Hooks,
    blocking::blocking,
    object_source::ObjectSource,
    queue::{Lane, Queue},
    record::{Body, Of, Record},
    record_locks::RecordLocks,
    requests::Requests,
    store::Store,
    write_behind::WriteBehind,
};

/// The records, on disk and in memory, and the work queue.
pub(crate) struct Shared {
    pub(crate) state_dir: PathBuf,
    pub(crate) boot: String,
    hooks: Hooks,
    pub(crate) queue: Queue,
    /// The requests of administrators.
    pub(crate) requests: Requests,
    store: Store,
    /// What was concluded and is not on disk yet.
    pub(crate) behind: WriteBehind,
    records: Mutex<Records>,
    doubted: Mutex<HashSet<ObjectKey>>,
    /// The objects of other nodes, each with its node.
    elsewhere: Mutex<HashMap<ObjectKey, String>>,
    /// The listeners for changed records.
    listeners: Mutex<Vec<mpsc::UnboundedSender<ObjectKey>>>,
    cluster: OnceLock<Followed>,
    /// The kinds that the API server has listed completely since the start.
    listed: Mutex<HashSet<String>>,
    /// Triggers a scan of the directory.
    rescan: OnceLock<Arc<Notify>>,
    locks: RecordLocks,
}

/// The API server that is followed.
struct Followed {
    source: Box<dyn ObjectSource>,
    mounts: HostMounts,
}

/// How objects of an API server may be mounted on this host.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostMounts {
    /// The permitted root directories; an empty list permits no mounts.
    pub(crate) roots: Vec<PathBuf>,
    /// Mount options that are always added.
    pub(crate) options: Vec<String>,
}

#[derive(Default)]
struct Records {
    /// Boxed: a table keeps room for twice what it has, and a record takes a kilobyte there.
    by_key: HashMap<ObjectKey, Box<Record>>,
    /// The objects that refer to this one as their source or group.
    dependants: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl Records {
    fn insert(&mut self, record: Record) {
        let key = record.key();
        let sources = record.sources();
        let before = self.by_key.insert(key.clone(), Box::new(record));
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
    pub(crate) fn new(store: Store, state_dir: PathBuf, hooks: Hooks) -> Result<Self, Error> {
        let (loaded, unreadable) = store.load()?;
        for one in unreadable {
            tracing::error!(path = %one.path.display(), error = %one.why, "state file cannot be read; its object is ignored");
        }
        Ok(Self::of(store, state_dir, hooks, loaded))
    }

    /// The same with these records.
    pub(crate) fn of(store: Store, state_dir: PathBuf, hooks: Hooks, loaded: Vec<Record>) -> Self {
        let mut records = Records::default();
        for record in loaded {
            records.insert(record);
        }
        Self {
            boot: boot(),
            requests: if store.is_dry_run() {
                Requests::dry_run(&state_dir)
            } else {
                Requests::new(&state_dir)
            },
            state_dir,
            hooks,
            queue: Queue::default(),
            store,
            behind: WriteBehind::default(),
            records: Mutex::new(records),
            doubted: Mutex::default(),
            elsewhere: Mutex::default(),
            listeners: Mutex::default(),
            cluster: OnceLock::new(),
            listed: Mutex::default(),
            rescan: OnceLock::new(),
            locks: RecordLocks::default(),
        }
    }

    /// A fail point of this name.
    pub(crate) fn fail(&self, point: &str) {
        (self.hooks.fail)(point);
    }

    /// The time that is really waited for, of minutes or hours.
    pub(crate) fn time_lapse(&self, time: Duration) -> Duration {
        (self.hooks.time_lapse)(time)
    }

    /// The time of the day.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::try_from((self.hooks.now)()).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Sets the API server, and the rules for host mounts of its objects.
    pub(crate) fn follow_cluster(&self, source: Box<dyn ObjectSource>, mounts: HostMounts) {
        let _ = self.cluster.set(Followed { source, mounts });
    }

    /// Sets the trigger that rescans the directory of manifests.
    pub(crate) fn follow_directory(&self, rescan: Arc<Notify>) {
        let _ = self.rescan.set(rescan);
    }

    /// Notes that the API server has listed all objects of a kind: its deleting objects may be destroyed from now on.
    pub(crate) fn has_listed(&self, kind: &str) {
        lock(&self.listed).insert(kind.to_owned());
        let is_deleting = |record: &Record| {
            record.kind == kind && record.served().is_some_and(|served| served.is_deleting)
        };
        for key in self.keys_of(is_deleting) {
            self.queue.add(&key, Instant::now());
        }
    }

    /// Rescans the directory after an object of the API server is gone: a manifest file may have waited for that.
    pub(crate) fn look_at_directory(&self) {
        if let Some(rescan) = self.rescan.get() {
            rescan.notify_one();
        }
    }

    /// The API server that is followed.
    pub(crate) fn object_source(&self) -> Option<&dyn ObjectSource> {
        self.cluster.get().map(|followed| &*followed.source)
    }

    /// The rules for host mounts of API server objects, if one is followed.
    pub(crate) fn host_mounts(&self) -> Option<&HostMounts> {
        self.cluster.get().map(|followed| &followed.mounts)
    }

    /// Adds a listener for changed records.
    pub(crate) fn listen(&self, listener: mpsc::UnboundedSender<ObjectKey>) {
        lock(&self.listeners).push(listener);
    }

    pub(crate) fn tell(&self, key: &ObjectKey) {
        lock(&self.listeners).retain(|listener| listener.send(key.clone()).is_ok());
        self.wake_schedule(self.with(key, Record::schedule).flatten());
    }

    /// True if nothing on this host may be changed.
    pub(crate) fn is_dry_run(&self) -> bool {
        self.store.is_dry_run()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The record of an object, as last written.
    pub(crate) fn record(&self, key: &ObjectKey) -> Option<Record> {
        self.with(key, Record::clone)
    }

    /// Applies `look` to the record of an object, without copying it.
    pub(crate) fn with<T>(&self, key: &ObjectKey, look: impl FnOnce(&Record) -> T) -> Option<T> {
        let records = lock(&self.records);
        records.by_key.get(key).map(|record| look(record))
    }

    /// All objects.
    pub(crate) fn keys(&self) -> Vec<ObjectKey> {
        lock(&self.records).by_key.keys().cloned().collect()
    }

    /// The objects that match `is_meant`.
    pub(crate) fn keys_of(&self, is_meant: impl Fn(&Record) -> bool) -> Vec<ObjectKey> {
        lock(&self.records)
            .by_key
            .iter()
            .filter(|(_, record)| is_meant(record))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Number of objects by what `of` makes of each.
    pub(crate) fn count_by<T: Ord>(
        &self,
        of: impl Fn(&ObjectKey, &Record) -> T,
    ) -> BTreeMap<T, usize> {
        let mut counts = BTreeMap::new();
        for (key, record) in &lock(&self.records).by_key {
            *counts.entry(of(key, record)).or_default() += 1;
        }
        counts
    }

    /// The objects that refer to this one as their source or group.
    pub(crate) fn dependants(&self, key: &ObjectKey) -> Vec<Record> {
        let records = lock(&self.records);
        let keys = records.dependants.get(key).into_iter().flatten();
        keys.filter_map(|key| records.by_key.get(key))
            .map(|record| Record::clone(record))
            .collect()
    }

    /// Returns true if there is an object of a manifest file that was not destroyed.
    pub(crate) fn has_anything(&self) -> bool {
        let records = lock(&self.records);
        let mut records = records.by_key.values();
        records.any(|record| record.has_manifest() && !record.drumlin.destroyed)
    }

    /// Saves the result of a pass, merged with the current manifest part of the record; wakes the objects that wait for
    /// it.
    pub(crate) fn save(&self, record: &Record) -> Result<(), Error> {
        let key = record.key();
        // The runs of a schedule are in no manifest, though nothing is begun for one.
        let is_needed =
            |record: &Record| record.is_begun_here() || matches!(record.body, Body::Schedule(_));
        let write = if self.with(&key, is_needed) == Some(true) {
            Store::save
        } else {
            Store::save_begun
        };
        self.keep(record, |store, record| {
            blocking(|| write(store, record))?;
            self.behind.forget(&key);
            Ok(())
        })
    }

    /// Takes over the result of a pass in memory: what follows in the pass writes it, and what is lost before that is
    /// asked for again.
    pub(crate) fn remember(&self, record: &Record) -> Result<(), Error> {
        self.keep(record, |_, _| Ok(()))
    }

    fn keep(
        &self,
        record: &Record,
        write: impl FnOnce(&Store, &Record) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let key = record.key();
        let writing = self.locks.lock_soon(&key);
        let mut record = record.clone();
        let is_same = |now: &Record| now.drumlin.incarnation == record.drumlin.incarnation;
        let Some(now) = self.record(&key).filter(is_same) else {
            // The result of a pass of the former object does not apply to the new one.
            return Err(Error::Replaced(key.to_string()));
        };
        record.take_over(now);
        write(&self.store, &record)?;
        let handle = |record: &Record| match &record.body {
            Body::Volume(Of { status, .. }) => status.volume_handle.clone(),
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
            // A snapshot that is being deleted has waited for the volumes that are restored from it.
            if self.with(&source, Record::is_absent) == Some(true) {
                self.queue.add(&source, Instant::now());
            }
        }
        Ok(())
    }

    /// Saves a new object, replacing any other one of its name.
    pub(crate) fn put(&self, record: &Record) -> Result<(), Error> {
        self.put_by(record, || {
            self.store.save(record)?;
            self.behind.forget(&record.key());
            Ok(())
        })
    }

    /// The same for an object that is in a manifest. Nothing was begun for it, or all was lost: it comes again if its record is
    /// lost.
    pub(crate) fn put_ingested(&self, record: &Record) -> Result<(), Error> {
        if record.is_begun() {
            return self.put(record);
        }
        let key = record.key();
        // What a former object has left in the file is not to come again.
        let is_new = record.comes_again() && self.with(&key, |_| ()).is_none();
        self.put_by(record, || {
            if is_new {
                self.sync_later(&key)?;
            }
            self.store.save_unsynced(record)
        })
    }

    fn put_by(
        &self,
        record: &Record,
        write: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        blocking(|| {
            let key = record.key();
            let writing = self.writing(&key);
            write()?;
            lock(&self.records).insert(record.clone());
            drop(writing);
            self.tell(&key);
            self.wake_dependants(&key);
            Ok(())
        })
    }

    /// Edits the manifest part of a record, and leaves the parts that a pass writes. `change` returns true if anything
    /// changed; so does this.
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
            self.behind.forget(key);
            lock(&self.records).insert(record);
            drop(writing);
            self.tell(key);
            self.wake_dependants(key);
            Ok(true)
        })
    }

    /// Removes an object.
    pub(crate) fn forget(&self, key: &ObjectKey) -> Result<(), Error> {
        blocking(|| {
            let groups = self.groups_about(key);
            let schedule = self.with(key, Record::schedule).flatten();
            let _writing = self.writing(key);
            self.store.remove(key)?;
            self.behind.forget(key);
            let removed = self.record(key);
            lock(&self.records).remove(key);
            if let Some(removed) = removed {
                self.store.note_end(&removed);
            }
            self.tell(key);
            self.wake_schedule(schedule);
            self.look_again(&groups);
            Ok(())
        })
    }

    /// Notes that an object belongs to another node, so that groups that select it can report that.
    pub(crate) fn note_elsewhere(&self, key: &ObjectKey, node: &str) {
        let before = lock(&self.elsewhere).insert(key.clone(), node.to_owned());
        if before.as_deref() != Some(node) {
            self.wake_groups(key);
        }
    }

    /// Removes the objects of other nodes that have no manifest any more.
    pub(crate) fn keep_elsewhere(&self, is_there: impl Fn(&ObjectKey) -> bool) {
        lock(&self.elsewhere).retain(|key, _| is_there(key));
    }

    /// The other node that an object belongs to, according to its manifest.
    pub(crate) fn node_elsewhere(&self, key: &ObjectKey) -> Option<String> {
        lock(&self.elsewhere).get(key).cloned()
    }

    /// Marks the resource of an object as suspected: its next pass looks for it.
    pub(crate) fn doubt(&self, key: &ObjectKey) {
        lock(&self.doubted).insert(key.clone());
    }

    /// Returns true if the resource is suspected to be missing.
    pub(crate) fn is_doubted(&self, key: &ObjectKey) -> bool {
        lock(&self.doubted).contains(key)
    }

    /// Clears the suspicion and returns true if there was one; the caller looks for the resource, and marks it again if
    /// it cannot.
    pub(crate) fn take_doubt(&self, key: &ObjectKey) -> bool {
        lock(&self.doubted).remove(key)
    }

    /// Returns true if there may be work for an object; if not, nothing is called.
    pub(crate) fn needs_work(&self, record: &Record) -> bool {
        if record.drumlin.orphan_since.is_some() || record.is_paused() {
            return false;
        }
        // Whether it is still to be deleted is known only after the API server has listed it.
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

    /// Returns true if it was mounted in an earlier boot, and the mount is not confirmed in this one.
    fn is_unproven(&self, record: &Record) -> bool {
        let book = &record.drumlin;
        book.mounted.is_some() && book.boot.as_deref() != Some(self.boot.as_str())
    }

    /// Returns true if its mount options differ from those that the host requires now.
    fn is_held_otherwise(&self, record: &Record) -> bool {
        let must_hold = record.served().and(self.host_mounts());
        record.drumlin.mounted.is_some()
            && must_hold.is_some_and(|mounts| {
                let holds = record.drumlin.confined.as_ref();
                holds.is_none_or(|holds| holds.options != mounts.options)
            })
    }

    /// The urgency of the work on an object.
    pub(crate) fn lane(&self, key: &ObjectKey) -> Lane {
        let lane = self.with(key, |record| match record {
            _ if record.is_absent() => Lane::Removal,
            _ if self.is_unproven(record) => Lane::Mount,
            _ => Lane::Making,
        });
        lane.unwrap_or(Lane::Making)
    }

    /// The write lock of an object, held from reading its record until it is written.
    pub(crate) fn writing(&self, key: &ObjectKey) -> MutexGuard<'_, ()> {
        self.locks.lock(key)
    }
}

/// The boot id: mounts do not survive a reboot.
pub(crate) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// Locks a mutex, also after a panic: the data is always replaced in one step, so it is consistent.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
