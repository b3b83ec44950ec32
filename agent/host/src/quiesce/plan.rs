//! The plan of a quiesced copy: its members, locks, checks and steps, and how it is carried out.

use std::{
    fmt,
    fs::{File, OpenOptions},
    num::NonZero,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use nix::fcntl::Flock;

use super::{
    QuiesceTarget, ThawWatchdog,
    barrier::{Barrier, Report},
};
use crate::{
    DirectBuffer, Error, Kind, Result,
    copy::{self, Reflink},
    device_mapper::{DeviceMapper, Line},
    fail,
    flush::{self, Target},
    fsync,
    trace::{self, Wait},
    udev::Visibility,
};

/// Default timeout of the freeze barrier.
pub const DEFAULT_FREEZE_LIMIT: Duration = Duration::from_secs(1);
/// After a failed quiesce, time for each device to resume its writers before the locks are released: what it waits
/// for may need those locks.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// Maximum number of repeated syncs when the locks took long to get.
const LOCK_ROUNDS: usize = 3;
/// Stack size of a thread that quiesces one image: it makes a few system calls.
const STACK: usize = 128 << 10;
/// Number of file systems per processor that are settled in parallel: settling briefly freezes them, and they slow
/// each other down.
const SETTLED_AT_ONCE: usize = 8;
/// Size of the header of an exception store; zeros mean that it is empty.
const STORE_HEAD: usize = 4096;

/// A step of taking a copy.
#[derive(Debug)]
pub enum Step {
    /// Sends a message to a thin pool.
    Message {
        /// The pool's UUID.
        pool: String,
        /// The message.
        text: String,
    },
    /// Removes an unused device.
    Unmap {
        /// Its UUID.
        uuid: String,
    },
    /// Empties an exception store.
    Forget {
        /// The device of the store.
        store: PathBuf,
    },
    /// Creates the device of a snapshot, which is inactive: everything that can be done before the freeze barrier.
    Prepare {
        /// Its name under `/dev/mapper`.
        name: String,
        /// Its UUID.
        uuid: String,
        /// Its table.
        table: Vec<Line>,
    },
    /// Activates it: from now on it keeps overwritten blocks.
    Start {
        /// Its UUID.
        uuid: String,
    },
    /// Makes a file share the blocks of another one.
    Share {
        /// The source.
        from: File,
        /// An empty file, or one of holes only.
        to: File,
    },
    /// Copies a file whose blocks cannot be shared.
    Copy {
        /// The source.
        from: File,
        /// An empty file, or one of holes only.
        to: File,
    },
}

/// A member of a group snapshot.
#[derive(Debug, Default)]
pub struct Member {
    /// Its name, for messages.
    pub name: String,
    /// Flushed before anything is locked: a directory of each mounted file system, or an open block device.
    pub flushed: Vec<File>,
    /// The file systems that are settled right before the freeze barrier.
    pub settled: Vec<QuiesceTarget>,
    /// What quiesces its writers, in order.
    pub held: Vec<QuiesceTarget>,
    /// The steps before the freeze barrier, while writers run.
    pub before: Vec<Step>,
    /// The steps within the freeze barrier.
    pub within: Vec<Step>,
}

/// Checks that the plan is still valid, once the locks prevent changes.
pub type Check = Box<dyn Fn() -> Result<()> + Send>;

/// Takes a lock.
type TakeLock = Box<dyn Fn() -> Result<Flock<File>> + Send>;

/// A lock against other processes that could change the members.
pub struct Lock {
    name: String,
    take: TakeLock,
}

impl Lock {
    /// The lock of this name; all callers must use the same name.
    pub fn new(name: &str, take: impl Fn() -> Result<Flock<File>> + Send + 'static) -> Self {
        Self {
            name: name.to_owned(),
            take: Box::new(take),
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lock").field(&self.name).finish()
    }
}

/// The plan of a group snapshot.
#[derive(Default)]
pub struct QuiescePlan {
    /// The locks to take.
    pub locks: Vec<Lock>,
    /// Checks that are made under the locks.
    pub checks: Vec<Check>,
    /// The members.
    pub members: Vec<Member>,
    /// Timeout of the freeze barrier.
    pub limit: Duration,
}

impl fmt::Debug for QuiescePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuiescePlan")
            .field("locks", &self.locks)
            .field("members", &self.members)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// The result of a freeze barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointInTime {
    /// The point in time of the copies.
    pub at: SystemTime,
    /// How long writers were quiesced.
    pub barrier: Duration,
}

impl QuiescePlan {
    /// Merges the plan of another back end for the same group snapshot. The shorter timeout applies.
    pub fn join(&mut self, other: Self) {
        self.limit = if self.members.is_empty() {
            other.limit
        } else {
            self.limit.min(other.limit)
        };
        self.locks.extend(other.locks);
        self.checks.extend(other.checks);
        self.members.extend(other.members);
    }

    /// Takes the copies. In every case all writers are resumed when this returns, except those of a device that
    /// cannot be resumed.
    ///
    /// # Errors
    /// `Busy` when other processes keep their locks, or on a timeout; `HalfDone` when a writer could not be resumed;
    /// otherwise the error of the failed step, with the name of its image. Completed steps are not undone.
    pub fn take(mut self, watchdog: ThawWatchdog) -> Result<PointInTime> {
        // All callers use the same order, so that two of them never deadlock.
        self.locks.sort_by(|a, b| a.name.cmp(&b.name));
        self.locks.dedup_by(|a, b| a.name == b.name);
        let mut locks = self.flush_and_lock()?;
        for check in &self.checks {
            check()?;
        }
        let mapper = self.mapper()?;
        let taken = self.take_locked(watchdog, &mut locks, mapper.as_ref());
        if taken.is_err() {
            self.take_back(mapper.as_ref());
        }
        taken
    }

    /// The part under the locks. The thaw watchdog ends before they are released, because it has them, too: releasing
    /// them here also releases them there.
    fn take_locked(
        &self,
        mut watchdog: ThawWatchdog,
        locks: &mut Vec<Flock<File>>,
        mapper: Option<&DeviceMapper>,
    ) -> Result<PointInTime> {
        for member in &self.members {
            member.run(&member.before, mapper)?;
        }
        fail::point("quiesce.prepared");
        watchdog.arm(&self.watched(), locks)?;
        let writers = self.members.iter().filter(|member| !member.held.is_empty());
        let writers: Vec<&Member> = writers.collect();
        let barrier = Barrier::new(self.limit, writers.len());
        let span = trace::quiesce(writers.len());
        let quiesce = || {
            thread::scope(|scope| {
                let mut threads = Vec::new();
                let mut result = Ok(());
                for (number, member) in writers.iter().enumerate() {
                    let (barrier, span) = (&barrier, &span);
                    let hold = move || {
                        let _entered = span.enter();
                        let ended = member.quiesce_within(number, barrier, mapper);
                        barrier.leave();
                        ended
                    };
                    let thread = thread::Builder::new().stack_size(STACK);
                    match thread.spawn_scoped(scope, hold) {
                        Ok(thread) => threads.push(thread),
                        Err(error) => {
                            result = Err(Error::new(
                                Kind::Busy,
                                "could not start a thread for each image; retry",
                            )
                            .because(error));
                            break;
                        }
                    }
                }
                let taken = result.and_then(|()| self.at_once(&barrier, &mut watchdog, mapper));
                barrier.end();
                if taken.is_err() && !barrier.wait_for_all(threads.len(), GRACE) {
                    locks.clear();
                }
                let (mut result, mut released) = (taken.map(|at| (at, barrier.began())), Ok(()));
                for thread in threads {
                    let ended = thread.join().unwrap_or_else(|_| {
                        let error =
                            Error::new(Kind::Bug, "a thread that quiesces an image panicked");
                        (Ok(()), Err(error))
                    });
                    // A writer that could not be quiesced is the cause of a failed copy, whatever happened to the copy.
                    result = ended.0.and(result);
                    released = released.and(ended.1);
                }
                (result, released)
            })
        };
        let (taken, released) = span.in_scope(quiesce);
        drop(span);
        fail::point("quiesce.released");
        if let Err(error) = released {
            // When its socket closes, the watchdog also tries to resume them.
            drop(watchdog);
            return Err(Error::new(Kind::HalfDone, "could not resume all writers").because(error));
        }
        let was_late = watchdog.stand_down();
        let (at, began) = taken?;
        let barrier = began.map_or(Duration::ZERO, |began| began.elapsed());
        if was_late? {
            return Err(too_long(self.limit));
        }
        Ok(PointInTime { at, barrier })
    }

    /// Removes devices that were prepared and never activated: LVM would find the volumes below in use, and could not
    /// remove them.
    fn take_back(&self, mapper: Option<&DeviceMapper>) {
        let steps = self.members.iter().flat_map(|member| &member.before);
        for step in steps {
            let (Step::Prepare { uuid, .. }, Some(mapper)) = (step, mapper) else {
                continue;
            };
            let removed = mapper.find(uuid).and_then(|device| match device {
                Some(device) if !device.is_live => mapper.remove(uuid),
                _ => Ok(()),
            });
            if let Err(error) = removed {
                tracing::warn!(device = %uuid, error = %error.chain(), "device prepared for a snapshot not removed");
            }
        }
    }

    /// Flushes the members, and takes the locks: the slow flush happens before other processes have to wait for the
    /// locks, and little is left to sync under them.
    fn flush_and_lock(&self) -> Result<Vec<Flock<File>>> {
        let targets = self.members.iter().flat_map(|member| {
            let name = member.name.as_str();
            member.flushed.iter().map(move |file| Target { name, file })
        });
        let targets: Vec<Target<'_>> = targets.collect();
        let mut rounds = 0;
        loop {
            flush::flush(&targets, self.limit).map_err(|error| self.explain(error))?;
            fail::point("quiesce.flushed");
            let begun = Instant::now();
            let wait = trace::wait(Wait::Lock);
            let locks = self.locks.iter().map(|lock| (lock.take)());
            let locks: Vec<Flock<File>> = locks.collect::<Result<_>>()?;
            drop(wait);
            rounds += 1;
            if rounds == LOCK_ROUNDS || begun.elapsed() < self.limit {
                return Ok(locks);
            }
        }
    }

    /// Explains a failed sync: the storage may be out of space.
    fn explain(&self, error: Error) -> Error {
        let mut failed = self.checks.iter().filter_map(|check| check().err());
        failed
            .find(|error| error.kind() == Kind::NoSpace)
            .unwrap_or(error)
    }

    /// The targets that the thaw watchdog resumes, for each image.
    fn watched(&self) -> Vec<Vec<&QuiesceTarget>> {
        let all = self.members.iter();
        let all = all.map(|member| member.settled.iter().chain(&member.held).collect());
        all.filter(|held: &Vec<&QuiesceTarget>| !held.is_empty())
            .collect()
    }

    fn mapper(&self) -> Result<Option<DeviceMapper>> {
        let needs = self.members.iter().any(Member::needs_mapper);
        needs.then(DeviceMapper::open).transpose()
    }

    /// Quiesces all writers at once, and takes the copies. If one could not be quiesced, its thread reports the
    /// error.
    fn at_once(
        &self,
        barrier: &Barrier,
        watchdog: &mut ThawWatchdog,
        mapper: Option<&DeviceMapper>,
    ) -> Result<SystemTime> {
        let at_once = SETTLED_AT_ONCE * thread::available_parallelism().map_or(1, NonZero::get);
        // Settling also freezes briefly; and the locks are held.
        watchdog.watch(self.limit)?;
        let deadline = Instant::now() + self.limit;
        for end in (at_once..barrier.holders).step_by(at_once) {
            if !barrier.settle(end, deadline) {
                return Err(too_long(self.limit));
            }
        }
        watchdog.watch(self.limit)?;
        fail::point("quiesce.armed");
        let is_quiesced = barrier.begin();
        fail::point("quiesce.held");
        let at = SystemTime::now();
        if is_quiesced {
            self.make_copies(mapper, barrier)?;
        }
        if barrier.is_over() {
            // Some writers may have resumed before the last copy was taken.
            return Err(too_long(self.limit));
        }
        fail::point("quiesce.copied");
        Ok(at)
    }

    fn make_copies(&self, mapper: Option<&DeviceMapper>, barrier: &Barrier) -> Result<()> {
        let mut is_first = true;
        for member in &self.members {
            if barrier.is_over() {
                return Err(too_long(self.limit));
            }
            member.run(&member.within, mapper)?;
            if std::mem::take(&mut is_first) {
                fail::point("quiesce.first-copied");
            }
        }
        Ok(())
    }
}

fn too_long(limit: Duration) -> Error {
    Error::new(
        Kind::Busy,
        format!(
            "the freeze barrier exceeded its timeout of {} ms; retry, or set a larger longestFreeze in the class",
            limit.as_millis()
        ),
    )
}

impl Member {
    /// Quiesces the writers of a member during the freeze barrier; returns whether they were quiesced, and whether
    /// they resumed.
    fn quiesce_within(
        &self,
        number: usize,
        barrier: &Barrier,
        mapper: Option<&DeviceMapper>,
    ) -> (Result<()>, Result<()>) {
        if !barrier.wait_to_settle(number) {
            return (Ok(()), Ok(()));
        }
        if let Err(error) = self.settled.iter().try_for_each(QuiesceTarget::settle) {
            barrier.report(Report::Lost);
            return (Err(self.explain(error)), Ok(()));
        }
        barrier.has_settled();
        if !barrier.wait_for_begin(number) {
            return (Ok(()), Ok(()));
        }
        let (mut quiescing, mut done) = (Ok(()), 0);
        for held in &self.held {
            // A late member would only wait for others that are as late.
            quiescing = if barrier.is_over() {
                Err(too_long(barrier.limit))
            } else {
                held.hold(mapper)
            };
            if quiescing.is_err() {
                break;
            }
            done += 1;
            if barrier.is_first() {
                fail::point("quiesce.first-held");
            }
        }
        if quiescing.is_ok() && barrier.is_over() {
            quiescing = Err(too_long(barrier.limit));
        }
        if quiescing.is_ok() {
            barrier.report(Report::Quiesced);
            barrier.wait_for_end();
        } else {
            barrier.report(Report::Lost);
        }
        let mut released = Ok(());
        for held in self.held.iter().take(done).rev() {
            released = released.and(held.release(mapper));
        }
        let explain = |error| self.explain(error);
        (quiescing.map_err(explain), released.map_err(explain))
    }

    fn needs_mapper(&self) -> bool {
        let steps = self.before.iter().chain(&self.within);
        let mut steps =
            steps.filter(|step| !matches!(step, Step::Share { .. } | Step::Copy { .. }));
        steps.next().is_some() || self.held.iter().any(QuiesceTarget::is_device)
    }

    fn run(&self, steps: &[Step], mapper: Option<&DeviceMapper>) -> Result<()> {
        for step in steps {
            step.run(mapper).map_err(|error| self.explain(error))?;
        }
        Ok(())
    }

    /// Adds the name of the image to the error.
    fn explain(&self, error: Error) -> Error {
        Error::new(error.kind(), self.name.clone()).because(error)
    }
}

pub(super) fn open(mapper: Option<&DeviceMapper>) -> Result<&DeviceMapper> {
    mapper.ok_or_else(|| {
        Error::new(
            Kind::Bug,
            "device-mapper was not opened for a freeze barrier",
        )
    })
}

impl Step {
    fn run(&self, mapper: Option<&DeviceMapper>) -> Result<()> {
        match self {
            Self::Message { pool, text } => open(mapper)?.message(pool, text),
            Self::Unmap { uuid } => open(mapper)?.remove(uuid),
            Self::Forget { store } => forget(store),
            Self::Prepare { name, uuid, table } => {
                open(mapper)?.prepare(name, uuid, table).map(drop)
            }
            Self::Start { uuid } => open(mapper)?.start(uuid, Visibility::Snapshot.cookie()),
            Self::Share { from, to } => match copy::reflink(from, to)? {
                Reflink::Done => Ok(()),
                Reflink::Unsupported => Err(Error::new(
                    Kind::Precondition,
                    "the file system does not support sharing blocks any more",
                )),
            },
            Self::Copy { from, to } => copy::sparse_copy(from, to, |_| Ok(())),
        }
    }
}

/// Empties an exception store: the blocks copied into it since its snapshot was created belong to an earlier point in
/// time.
fn forget(store: &Path) -> Result<()> {
    let failed = |error| Error::io(format!("could not empty {}", store.display()), error);
    let device = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(store);
    let device = device.map_err(failed)?;
    let zeros = DirectBuffer::new(STORE_HEAD);
    device.write_all_at(zeros.bytes(), 0).map_err(failed)?;
    fsync(&device).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_of_several_classes_says_how_long_writers_wait() {
        let mut all = QuiescePlan::default();
        for seconds in [30, 5, 60] {
            all.join(QuiescePlan {
                members: vec![Member::default()],
                limit: Duration::from_secs(seconds),
                ..QuiescePlan::default()
            });
        }
        assert_eq!(all.limit, Duration::from_secs(5));
        assert_eq!(all.members.len(), 3);
    }
}
