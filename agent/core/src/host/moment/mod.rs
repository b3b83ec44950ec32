//! One moment of several images: all their writers wait, then the copies are made, then the writers go on.
//!
//! A write that was acknowledged before the last writer was held is in its copy; one that was not waits. So the copies
//! hold what was acknowledged by one instant, in whatever order the writers were held.

mod guard;
mod held;

use std::{
    fmt,
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use nix::fcntl::Flock;

pub use guard::{Guard, Watched, serve};
pub use held::Held;

use super::{
    DirectBuffer,
    copy::{self, Reflink},
    device_mapper::{DeviceMapper, Line},
};
use crate::{Error, Kind, Result, fail};

/// So long writers wait at most where nothing else is said.
pub const SHORT: Duration = Duration::from_secs(1);
/// The head of an exception store; zeros mean that it is empty.
const STORE_HEAD: usize = 4096;

/// What is done to make a copy.
#[derive(Debug)]
pub enum Step {
    /// Says something to a thin pool.
    Message {
        /// The pool's uuid.
        pool: String,
        /// What.
        text: String,
    },
    /// Takes a device away that nobody uses.
    Unmap {
        /// Its uuid.
        uuid: String,
    },
    /// Has an exception store forget what is in it.
    Forget {
        /// The store's device.
        store: PathBuf,
    },
    /// Makes a device.
    Map {
        /// Its name under `/dev/mapper`.
        name: String,
        /// Its uuid.
        uuid: String,
        /// Its table.
        table: Vec<Line>,
    },
    /// Has a file share the blocks of another one.
    Share {
        /// That one.
        from: File,
        /// An empty file, or one of holes only.
        to: File,
    },
    /// Copies a file that cannot be shared.
    Copy {
        /// From where.
        from: File,
        /// An empty file, or one of holes only.
        to: File,
    },
}

/// One of the images of a moment.
#[derive(Debug, Default)]
pub struct Member {
    /// What it is called, for people.
    pub name: String,
    /// What keeps its writers waiting, in order.
    pub held: Vec<Held>,
    /// What is done while they still write.
    pub before: Vec<Step>,
    /// What is done while they wait.
    pub within: Vec<Step>,
}

/// Says whether what was planned is still right, once nobody else can change it.
pub type Check = Box<dyn Fn() -> Result<()> + Send>;

/// How a lock is taken.
type TakeLock = Box<dyn Fn() -> Result<Flock<File>> + Send>;

/// What is locked against others who would change what is held.
pub struct Lock {
    name: String,
    take: TakeLock,
}

impl Lock {
    /// The lock of what is called `name`, the same for all who want it.
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

/// A moment to be taken.
#[derive(Default)]
pub struct Moment {
    /// What is locked meanwhile.
    pub locks: Vec<Lock>,
    /// Looked at once they are.
    pub checks: Vec<Check>,
    /// The images.
    pub members: Vec<Member>,
    /// The longest that writers may wait.
    pub limit: Duration,
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moment")
            .field("locks", &self.locks)
            .field("members", &self.members)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// What a moment was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// When it was.
    pub at: SystemTime,
    /// So long writers waited.
    pub window: Duration,
}

impl Moment {
    /// Adds what another back end has for the same moment.
    pub fn join(&mut self, other: Self) {
        self.locks.extend(other.locks);
        self.checks.extend(other.checks);
        self.members.extend(other.members);
        self.limit = self.limit.max(other.limit);
    }

    /// Takes it. Whatever comes of it, no writer waits any longer when this returns.
    ///
    /// # Errors
    /// `Busy` when others do not let go of their locks, or it took too long; else that of the step that failed, with the
    /// name of its image. What the steps did is not undone.
    pub fn take(mut self, mut guard: Guard) -> Result<Taken> {
        // In one order, whoever comes: two of these never wait for each other.
        self.locks.sort_by(|a, b| a.name.cmp(&b.name));
        self.locks.dedup_by(|a, b| a.name == b.name);
        let locks = self.locks.iter().map(|lock| (lock.take)());
        let locks: Vec<Flock<File>> = locks.collect::<Result<_>>()?;
        for check in &self.checks {
            check()?;
        }
        let mapper = self.mapper()?;
        for member in &self.members {
            member.run(&member.before, mapper.as_ref())?;
        }
        fail::point("moment.prepared");
        let held = self.members.iter().map(|member| member.held.as_slice());
        guard.arm(&held.collect::<Vec<_>>(), &locks, self.limit)?;
        fail::point("moment.armed");
        let taken = self.within_window(mapper.as_ref());
        fail::point("moment.released");
        let was_late = guard.stand_down();
        let taken = taken?;
        if was_late? {
            return Err(too_long(self.limit));
        }
        Ok(taken)
    }

    fn mapper(&self) -> Result<Option<DeviceMapper>> {
        let needs = self.members.iter().any(Member::needs_mapper);
        needs.then(DeviceMapper::open).transpose()
    }

    /// Holds all writers at once, each in a thread of its own, makes the copies, and lets them go.
    fn within_window(&self, mapper: Option<&DeviceMapper>) -> Result<Taken> {
        let writers: Vec<&Member> = self
            .members
            .iter()
            .filter(|member| !member.held.is_empty())
            .collect();
        let (start, all_held, end) = (
            Barrier::new(writers.len() + 1),
            Barrier::new(writers.len() + 1),
            Barrier::new(writers.len() + 1),
        );
        let (is_first_held, is_lost) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let waiting: Vec<_> = writers
                .into_iter()
                .map(|member| {
                    let (start, all_held, end) = (&start, &all_held, &end);
                    let (is_first_held, is_lost) = (&is_first_held, &is_lost);
                    scope.spawn(move || {
                        start.wait();
                        let mut holding = Ok(());
                        let mut done = 0;
                        for held in &member.held {
                            holding = held.hold(mapper);
                            if holding.is_err() {
                                is_lost.store(true, Ordering::SeqCst);
                                break;
                            }
                            done += 1;
                            if !is_first_held.swap(true, Ordering::SeqCst) {
                                fail::point("moment.first-held");
                            }
                        }
                        all_held.wait();
                        end.wait();
                        let mut released = Ok(());
                        for held in member.held.iter().take(done).rev() {
                            released = released.and(held.release(mapper));
                        }
                        holding.and(released).map_err(|error| member.explain(error))
                    })
                })
                .collect();
            start.wait();
            let begun = Instant::now();
            all_held.wait();
            fail::point("moment.held");
            let at = SystemTime::now();
            let made = if is_lost.load(Ordering::SeqCst) {
                Ok(())
            } else {
                self.make_copies(mapper, begun)
            };
            fail::point("moment.copied");
            end.wait();
            let mut result = made;
            for thread in waiting {
                let ended = thread.join().unwrap_or_else(|_| {
                    Err(Error::new(
                        Kind::Bug,
                        "a thread that holds writers panicked",
                    ))
                });
                // A writer that could not be held is why a copy is wrong, whatever became of that.
                result = ended.and(result);
            }
            result.map(|()| Taken {
                at,
                window: begun.elapsed(),
            })
        })
    }

    fn make_copies(&self, mapper: Option<&DeviceMapper>, begun: Instant) -> Result<()> {
        let mut is_first = true;
        for member in &self.members {
            if begun.elapsed() >= self.limit {
                return Err(too_long(self.limit));
            }
            member.run(&member.within, mapper)?;
            if std::mem::take(&mut is_first) {
                fail::point("moment.first-copied");
            }
        }
        Ok(())
    }
}

fn too_long(limit: Duration) -> Error {
    Error::new(
        Kind::Busy,
        format!(
            "the writers could not be held within {} ms; ask again",
            limit.as_millis()
        ),
    )
}

impl Member {
    fn needs_mapper(&self) -> bool {
        let steps = self.before.iter().chain(&self.within);
        let mut steps =
            steps.filter(|step| !matches!(step, Step::Share { .. } | Step::Copy { .. }));
        steps.next().is_some() || self.held.iter().any(Held::is_device)
    }

    fn run(&self, steps: &[Step], mapper: Option<&DeviceMapper>) -> Result<()> {
        for step in steps {
            step.run(mapper).map_err(|error| self.explain(error))?;
        }
        Ok(())
    }

    /// The error with the name of the image.
    fn explain(&self, error: Error) -> Error {
        Error::new(error.kind(), self.name.clone()).because(error)
    }
}

fn open(mapper: Option<&DeviceMapper>) -> Result<&DeviceMapper> {
    mapper.ok_or_else(|| Error::new(Kind::Bug, "device-mapper was not opened for a moment"))
}

impl Step {
    fn run(&self, mapper: Option<&DeviceMapper>) -> Result<()> {
        match self {
            Self::Message { pool, text } => open(mapper)?.message(pool, text),
            Self::Unmap { uuid } => open(mapper)?.remove(uuid),
            Self::Forget { store } => forget(store),
            Self::Map { name, uuid, table } => open(mapper)?.create(name, uuid, table).map(drop),
            Self::Share { from, to } => match copy::reflink(from, to)? {
                Reflink::Done => Ok(()),
                Reflink::Unsupported => Err(Error::new(
                    Kind::Precondition,
                    "the file system cannot share blocks any more",
                )),
            },
            Self::Copy { from, to } => copy::sparse_copy(from, to, |_| {}),
        }
    }
}

/// Empties an exception store: what was copied into it since its snapshot was made is of another moment.
fn forget(store: &Path) -> Result<()> {
    let failed = |error| Error::io(format!("could not empty {}", store.display()), error);
    let device = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(store);
    let device = device.map_err(failed)?;
    let zeros = DirectBuffer::new(STORE_HEAD);
    device.write_all_at(zeros.bytes(), 0).map_err(failed)?;
    device.sync_all().map_err(failed)
}
