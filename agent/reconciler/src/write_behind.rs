//! Records that are written a moment after they are known: what a pass concluded, and new objects.
//!
//! **Invariant:** what a later step relies on is written, durably, before that step begins, so a kill, or a power cut, meanwhile
//! only has a pass run again. A new object is known by its manifest, and its volume by the owner that the volume itself records:
//! both are there without its record. Until that is durable, [`Marker`](crate::marker::Marker) says so to the next process.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::resume_unwind,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use drumlin_crd::ObjectKey;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    Error,
    blocking::blocking,
    record::Record,
    state::{Shared, lock},
    state_file::sync_parent,
};

/// Pause before what could not be written is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// Time without anything to write, after which the records of new objects are made durable.
const QUIET: Duration = Duration::from_secs(1);
/// Longest time for which the record of a new object is not durable.
const LONGEST: Duration = Duration::from_secs(10);
/// Number of threads that write at once: file systems commit what several of them sync together.
const WRITERS: usize = 4;
/// Number of records below which another thread is not worth its start.
const SHARE: usize = 4;

/// The objects whose records on disk are older than those in memory, or not durable.
#[derive(Debug, Default)]
pub(crate) struct WriteBehind {
    due: Mutex<BTreeSet<ObjectKey>>,
    fresh: Mutex<Fresh>,
    added: Notify,
    /// Held while they are written: whoever writes all of them waits for those that another one writes.
    writing: Mutex<()>,
}

/// The new objects whose records may be lost: their files are not synced, or older than memory.
#[derive(Debug, Default)]
struct Fresh {
    /// Since when there are some.
    since: Option<Instant>,
    keys: BTreeSet<ObjectKey>,
}

impl Fresh {
    /// For how long there are some.
    fn age(&self) -> Option<Duration> {
        self.since.map(|since| since.elapsed())
    }

    fn add(&mut self, key: &ObjectKey) {
        self.since.get_or_insert_with(Instant::now);
        self.keys.insert(key.clone());
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.keys.remove(key);
        if self.keys.is_empty() {
            self.since = None;
        }
    }
}

impl WriteBehind {
    fn add(&self, key: ObjectKey) {
        lock(&self.due).insert(key);
        self.added.notify_one();
    }

    /// The record was written durably as it is in memory, or is not wanted any more. Whoever writes it holds its lock.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        lock(&self.due).remove(key);
        lock(&self.fresh).forget(key);
    }

    /// Returns true if the record of an object may be lost. It may not any more in a moment, unless its lock is held.
    pub(crate) fn is_fresh(&self, key: &ObjectKey) -> bool {
        lock(&self.fresh).keys.contains(key)
    }

    /// All that is to be written, and all that may be lost.
    fn all(&self) -> BTreeSet<ObjectKey> {
        let mut all = lock(&self.due).clone();
        let fresh = lock(&self.fresh);
        all.extend(fresh.keys.iter().cloned());
        all
    }
}

impl Shared {
    /// Takes over the result of a pass, as [`Shared::save`] does; it is written in a moment.
    pub(crate) fn save_behind(&self, record: &Record) -> Result<(), Error> {
        self.remember(record)?;
        self.behind.add(record.key());
        Ok(())
    }

    /// The record of a new object may be lost for now. Whoever changes it holds its lock.
    pub(crate) fn sync_later(&self, key: &ObjectKey) -> Result<(), Error> {
        let mut fresh = lock(&self.behind.fresh);
        if fresh.keys.is_empty() {
            blocking(|| self.store().marker().leave_unsaved())?;
        }
        fresh.add(key);
        self.behind.added.notify_one();
        Ok(())
    }

    /// Writes records as they become due, and makes those of new objects durable when it is quiet. Never ends.
    pub(crate) async fn keep_writing(&self) {
        loop {
            let added = self.behind.added.notified();
            let mut is_quiet = false;
            if self.age_of_fresh().is_some() {
                is_quiet = timeout(QUIET, added).await.is_err();
            } else {
                added.await;
            }
            let result = if is_quiet || self.age_of_fresh() >= Some(LONGEST) {
                self.write_all()
            } else {
                self.write_due()
            };
            if let Err(error) = result {
                tracing::error!(error = %error, "state could not be written");
                sleep(AGAIN).await;
                self.behind.added.notify_one();
            }
        }
    }

    /// Writes the records that are due: those of new objects as the kernel likes, all others durably. What could not be written
    /// stays due.
    ///
    /// # Errors
    /// The first one that there was.
    pub(crate) fn write_due(&self) -> Result<(), Error> {
        blocking(|| {
            let _writing = self.writing_behind();
            let due = lock(&self.behind.due).clone().into_iter();
            let (quick, slow): (Vec<_>, Vec<_>) = due.partition(|key| self.behind.is_fresh(key));
            let mut failed = None;
            for key in &quick {
                failed = failed.or(self.write_unsynced(key).err());
            }
            failed = failed.or(self.write_durably(&slow).err());
            failed.map_or(Ok(()), Err)
        })
    }

    /// Writes all records that are due or of new objects, durably. What could not be written stays so.
    ///
    /// # Errors
    /// The first one that there was.
    pub(crate) fn write_all(&self) -> Result<(), Error> {
        blocking(|| {
            let _writing = self.writing_behind();
            self.write_durably(&self.behind.all().into_iter().collect::<Vec<_>>())?;
            // Who adds one waits, and finds no marker.
            let fresh = lock(&self.behind.fresh);
            if fresh.keys.is_empty() {
                self.store().marker().has_saved_all();
            }
            Ok(())
        })
    }

    fn age_of_fresh(&self) -> Option<Duration> {
        lock(&self.behind.fresh).age()
    }

    fn writing_behind(&self) -> MutexGuard<'_, ()> {
        let writing = self.behind.writing.lock();
        writing.unwrap_or_else(PoisonError::into_inner)
    }

    fn write_durably(&self, keys: &[ObjectKey]) -> Result<(), Error> {
        // By directory: one sync of it is for all of its files.
        let mut written: BTreeMap<PathBuf, Vec<(PathBuf, ObjectKey)>> = BTreeMap::new();
        let mut failed = None;
        for result in self.write_at_once(keys) {
            match result {
                Ok((path, key)) => {
                    let directory = path.parent().unwrap_or(&path).to_owned();
                    written.entry(directory).or_default().push((path, key));
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        for files in written.into_values() {
            let Some((path, _)) = files.first() else {
                continue;
            };
            if let Err(error) = sync_parent(path) {
                failed = failed.or(Some(error));
                lock(&self.behind.due).extend(files.into_iter().map(|(_, key)| key));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Writes the records of these objects, each as [`Shared::write_behind`] does; those that there are.
    fn write_at_once(&self, keys: &[ObjectKey]) -> Vec<Result<(PathBuf, ObjectKey), Error>> {
        let write = |keys: &[ObjectKey]| -> Vec<_> {
            let written = keys.iter().filter_map(|key| {
                self.fail("record.due");
                let path = self.write_behind(key).transpose()?;
                Some(path.map(|path| (path, key.clone())))
            });
            written.collect()
        };
        let share = keys.len().div_ceil(WRITERS).max(SHARE);
        let mut shares = keys.chunks(share);
        let own = shares.next().unwrap_or_default();
        thread::scope(|scope| {
            let start = |keys| {
                let thread = thread::Builder::new().name("records".to_owned());
                (keys, thread.spawn_scoped(scope, move || write(keys)))
            };
            let others: Vec<_> = shares.map(start).collect();
            let mut all = write(own);
            for (keys, other) in others {
                all.extend(match other {
                    // It has panicked in a thread, as it would have here.
                    Ok(other) => other.join().unwrap_or_else(|panic| resume_unwind(panic)),
                    // There may be no room for another thread.
                    Err(_) => write(keys),
                });
            }
            all
        })
    }

    /// Writes the record of an object as it is in memory; returns its file, whose directory is not synced.
    fn write_behind(&self, key: &ObjectKey) -> Result<Option<PathBuf>, Error> {
        let _writing = self.writing(key);
        let written = match self.record(key) {
            Some(record) => self.store().save_content(&record)?,
            None => None,
        };
        self.behind.forget(key);
        Ok(written)
    }

    /// Writes the record of a new object as it is in memory, as the kernel likes; nothing if it was made durable meanwhile, which
    /// must not be undone.
    fn write_unsynced(&self, key: &ObjectKey) -> Result<(), Error> {
        self.fail("record.due");
        let _writing = self.writing(key);
        if !self.behind.is_fresh(key) {
            return Ok(());
        }
        if let Some(record) = self.record(key) {
            self.store().save_unsynced(&record)?;
        }
        lock(&self.behind.due).remove(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
