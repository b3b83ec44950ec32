//! Records that are written a moment after they are known: what a pass concluded. Every step that a later one relies on is
//! written before that one begins, so a kill, or a power cut, meanwhile only has a pass run again.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::resume_unwind,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use drumlin_crd::ObjectKey;
use tokio::{sync::Notify, time::sleep};

use crate::{
    Error,
    blocking::blocking,
    record::Record,
    state::{Shared, lock},
    state_file::sync_parent,
};

/// Pause before what could not be written is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// Number of threads that write at once: file systems commit what several of them sync together.
const WRITERS: usize = 4;
/// Number of records below which another thread is not worth its start.
const SHARE: usize = 4;

/// The objects whose records on disk are older than those in memory.
#[derive(Debug, Default)]
pub(crate) struct WriteBehind {
    due: Mutex<BTreeSet<ObjectKey>>,
    added: Notify,
    /// Held while they are written: whoever writes all of them waits for those that another one writes.
    writing: Mutex<()>,
}

impl WriteBehind {
    fn add(&self, key: ObjectKey) {
        lock(&self.due).insert(key);
        self.added.notify_one();
    }

    /// The record was written as it is in memory, or is not wanted any more.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        lock(&self.due).remove(key);
    }
}

impl Shared {
    /// Takes over the result of a pass, as [`Shared::save`] does; it is written in a moment.
    pub(crate) fn save_behind(&self, record: &Record) -> Result<(), Error> {
        self.remember(record)?;
        self.behind.add(record.key());
        Ok(())
    }

    /// Writes records as they become due. Never ends.
    pub(crate) async fn keep_writing(&self) {
        loop {
            self.behind.added.notified().await;
            while let Err(error) = self.write_due() {
                tracing::error!(error = %error, "state could not be written");
                sleep(AGAIN).await;
            }
        }
    }

    /// Writes all records that are due, durably. What could not be written stays due.
    ///
    /// # Errors
    /// The first one that there was.
    pub(crate) fn write_due(&self) -> Result<(), Error> {
        blocking(|| {
            let writing = self.behind.writing.lock();
            let _writing = writing.unwrap_or_else(PoisonError::into_inner);
            let due: Vec<_> = lock(&self.behind.due).iter().cloned().collect();
            // By directory: one sync of it is for all of its files.
            let mut written: BTreeMap<PathBuf, Vec<(PathBuf, ObjectKey)>> = BTreeMap::new();
            let mut failed = None;
            for result in self.write_at_once(&due) {
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
        })
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
}
