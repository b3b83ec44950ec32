//! Long-running operations: their progress, and their end when the agent stops.

use std::{
    collections::HashMap,
    fmt,
    ops::{ControlFlow, Range},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{host::lock, types::ImageId};

/// Interval at which the progress of an operation is logged.
const LOGGED: Duration = Duration::from_secs(10);
/// Time after which the rate of an operation is known.
const SURE: Duration = Duration::from_secs(1);

/// Operations that take as long as there are bytes to copy or wipe.
pub trait Jobs {
    /// Those that are in flight.
    fn running(&self) -> &Running;

    /// The progress of a long-running operation on the image; none if there is no such operation.
    fn progress(&self, id: ImageId) -> Option<Progress> {
        self.running().progress(id)
    }

    /// The agent is stopping: long-running operations stop where they can be resumed.
    fn stop(&self) {
        self.running().stop();
    }
}

/// What a long-running operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// It copies the bytes of a volume or snapshot.
    Copying,
    /// It wipes the bytes of former volumes.
    Wiping,
    /// It rolls a volume back to one of its snapshots.
    RollingBack,
}

impl Job {
    /// `copying`, `wiping` or `rolling back`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Copying => "copying",
            Self::Wiping => "wiping",
            Self::RollingBack => "rolling back",
        }
    }
}

/// How far a long-running operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What it does.
    pub job: Job,
    /// The bytes that are done.
    pub done: u64,
    /// All bytes.
    pub bytes: u64,
    /// Bytes per second, once it is known.
    pub rate: Option<u64>,
}

impl Progress {
    /// The part that is done, in percent.
    pub fn percent(&self) -> u64 {
        (self.done.saturating_mul(100) / self.bytes.max(1)).min(100)
    }

    /// The time that is left at this rate, in seconds.
    pub fn seconds_left(&self) -> Option<u64> {
        let rate = self.rate.filter(|rate| *rate > 0)?;
        Some(self.bytes.saturating_sub(self.done).div_ceil(rate))
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (job, percent, bytes) = (self.job.word(), self.percent(), self.bytes);
        write!(f, "{job}, {percent} % of {bytes} bytes")?;
        if let (Some(rate), Some(left)) = (self.rate, self.seconds_left()) {
            let (rate, unit) = match rate >> 20 {
                0 => (rate >> 10, "KiB"),
                mebibytes => (mebibytes, "MiB"),
            };
            write!(f, ", {rate} {unit}/s, {left} s left")?;
        }
        Ok(())
    }
}

/// The cause of an error about an object on which such an operation is in flight.
impl std::error::Error for Progress {}

/// An operation in flight.
#[derive(Debug)]
struct InFlight {
    job: Job,
    span: Range<u64>,
    at: u64,
    begun: Instant,
    logged: Instant,
}

impl InFlight {
    fn progress(&self) -> Progress {
        let passed = self.begun.elapsed();
        let moved = self.at.saturating_sub(self.span.start);
        let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let rate = moved.saturating_mul(1000) / millis.max(1);
        Progress {
            job: self.job,
            done: self.at,
            bytes: self.span.end,
            rate: (passed >= SURE).then_some(rate),
        }
    }
}

type All = Arc<Mutex<HashMap<ImageId, InFlight>>>;

/// The long-running operations in flight, and whether they must stop.
#[derive(Debug, Default)]
pub struct Running {
    all: All,
    is_stopping: Arc<AtomicBool>,
}

/// One of these operations; it ends when this value is dropped.
#[derive(Debug)]
pub(super) struct RunningJob {
    id: ImageId,
    all: All,
    is_stopping: Arc<AtomicBool>,
}

impl Running {
    /// Registers an operation over a range of bytes.
    pub(super) fn begin(&self, id: ImageId, job: Job, span: Range<u64>) -> RunningJob {
        let now = Instant::now();
        let in_flight = InFlight {
            job,
            at: span.start,
            span,
            begun: now,
            logged: now,
        };
        lock(&self.all).insert(id, in_flight);
        RunningJob {
            id,
            all: Arc::clone(&self.all),
            is_stopping: Arc::clone(&self.is_stopping),
        }
    }

    fn progress(&self, id: ImageId) -> Option<Progress> {
        lock(&self.all).get(&id).map(InFlight::progress)
    }

    /// Stops all operations at their next step.
    fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }
}

impl RunningJob {
    /// Reports the position in bytes; returns whether to continue, which is false after the time limit or when the
    /// agent stops.
    pub(super) fn tell(&self, at: u64, until: Instant) -> ControlFlow<()> {
        if self.goes_on(at) && Instant::now() < until {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    /// Reports the position in bytes; returns true unless the agent stops.
    pub(super) fn goes_on(&self, at: u64) -> bool {
        let mut all = lock(&self.all);
        if let Some(in_flight) = all.get_mut(&self.id) {
            in_flight.at = at;
            if in_flight.logged.elapsed() >= LOGGED {
                in_flight.logged = Instant::now();
                tracing::info!(object = %self.id, progress = %in_flight.progress(), "operation in progress");
            }
        }
        !self.is_stopping.load(Ordering::Acquire)
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        let mut all = lock(&self.all);
        all.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ImageKind, Key};

    #[test]
    fn the_rate_is_that_of_what_was_done_since_it_began() {
        let progress = |at, seconds: u64| {
            let begun = Instant::now().checked_sub(Duration::from_millis(seconds * 1000 + 1));
            let begun = begun.unwrap();
            let in_flight = InFlight {
                job: Job::Copying,
                span: (1 << 30)..(4 << 30),
                at,
                begun,
                logged: begun,
            };
            in_flight.progress()
        };
        let told = progress(2 << 30, 8);
        assert_eq!(told.percent(), 50);
        assert_eq!(told.rate.unwrap() >> 20, 127);
        assert_eq!(told.seconds_left(), Some(17));
        let text = told.to_string();
        assert_eq!(
            text,
            "copying, 50 % of 4294967296 bytes, 127 MiB/s, 17 s left"
        );
        let slow = Progress {
            rate: Some(5 << 10),
            ..told
        };
        assert!(slow.to_string().contains(", 5 KiB/s, "), "{slow}");
        let early = progress(2 << 30, 0);
        assert_eq!((early.rate, early.seconds_left()), (None, None));
        assert_eq!(progress(1 << 30, 5).seconds_left(), None);
    }

    #[test]
    fn an_operation_is_known_while_it_runs() {
        let running = Running::default();
        let (kind, key) = (ImageKind::Volume, Key::NIL);
        let id = ImageId { kind, key };
        let job = running.begin(id, Job::Wiping, 0..200);
        assert!(job.goes_on(50));
        assert_eq!(running.progress(id).unwrap().percent(), 25);
        running.stop();
        assert!(!job.goes_on(60));
        drop(job);
        assert_eq!(running.progress(id), None);
    }
}
