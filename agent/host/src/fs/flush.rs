//! Flushes: syncs of what is mounted or open, before a lock is taken or a device is suspended.
//!
//! A freeze and a suspend also sync, and cannot be interrupted: on a slow disk, or in a full thin pool, they would
//! keep their lock from anyone who could help. So all cached data is written to disk before. Each sync runs on a
//! separate thread: on a timeout the caller returns, and a repeated call joins the sync that is in flight.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::{FileTypeExt, MetadataExt},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tracing::Span;

use crate::{Error, Kind, Result, lock, trace};

/// Timeout for syncs: less than the one-minute timeout of our callers.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of sync rounds until little is left to sync.
const ROUNDS: usize = 5;
/// Stack size of a thread that makes one system call.
const STACK: usize = 64 << 10;

/// A target to sync: a file system, by a directory in it, or a block device; with its name for messages.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// Its name.
    pub name: &'a str,
    /// A directory of the file system, or the device.
    pub file: &'a File,
}

/// A sync in flight, which several callers may wait for.
#[derive(Debug, Default)]
struct SharedSync {
    landed: Mutex<Option<Landed>>,
    changed: Condvar,
}

/// The result of a sync, and its duration.
#[derive(Debug, Clone, Copy)]
struct Landed {
    result: nix::Result<()>,
    took: Duration,
}

/// The syncs in flight, by whether the target is a block device, and the number of it or of the file system.
static IN_FLIGHT: Mutex<BTreeMap<(bool, u64), Arc<SharedSync>>> = Mutex::new(BTreeMap::new());

/// Syncs all targets in parallel, and repeats until a sync takes only a fraction of `limit`, the maximum duration of
/// the last one, which runs while writers are quiesced. A repeated call joins the syncs in flight.
///
/// # Errors
/// `Busy` on a timeout, or when the write load exceeds what the disk can sync within the limit; `Io` when a sync
/// fails.
pub fn flush(targets: &[Target<'_>], limit: Duration) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut left = targets.to_vec();
    let mut slow = None;
    for _ in 0..ROUNDS {
        let flights = left.into_iter().map(|target| Ok((target, begin(target)?)));
        let flights: Vec<_> = flights.collect::<Result<_>>()?;
        (left, slow) = (Vec::new(), None);
        for (target, joined) in flights {
            let landed = joined.flight.wait(deadline);
            drop(joined.span);
            let landed = landed.ok_or_else(|| takes_too_long(target))?;
            landed
                .result
                .map_err(|errno| failed(target, errno.into()))?;
            if landed.took >= limit {
                slow = Some(target);
            }
            // A sync that had begun before does not cover later writes.
            if !joined.is_ours || landed.took >= limit / 4 {
                left.push(target);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
    }
    slow.map_or(Ok(()), |target| Err(never_catches_up(target, limit)))
}

/// A sync in flight that this caller waits for.
#[derive(Debug)]
struct Joined {
    flight: Arc<SharedSync>,
    /// This caller has started it.
    is_ours: bool,
    /// Until this caller has waited for it: the sync itself may go on for longer.
    span: Span,
}

/// Starts a sync, or joins the one in flight.
fn begin(target: Target<'_>) -> Result<Joined> {
    let io = |error| failed(target, error);
    let metadata = target.file.metadata().map_err(io)?;
    let is_device = metadata.file_type().is_block_device();
    let number = if is_device {
        metadata.rdev()
    } else {
        metadata.dev()
    };
    let key = (is_device, number);
    let span = if is_device {
        trace::fsync()
    } else {
        trace::syncfs()
    };
    let joined = |flight, is_ours| Joined {
        flight,
        is_ours,
        span,
    };
    let file = target.file.try_clone().map_err(io)?;
    let mut all = lock(&IN_FLIGHT);
    if let Some(flight) = all.get(&key) {
        return Ok(joined(Arc::clone(flight), false));
    }
    let flight = Arc::<SharedSync>::default();
    let landing = Arc::clone(&flight);
    let sync = move || {
        let begun = Instant::now();
        let sync = || {
            if is_device {
                nix::unistd::fsync(&file)
            } else {
                nix::unistd::syncfs(&file)
            }
        };
        // The first sync also reports earlier failed writes, such as those to a pool that was full then.
        let result = sync().or_else(|_| sync());
        // The file is not kept open any longer.
        drop(file);
        let mut all = lock(&IN_FLIGHT);
        all.remove(&key);
        drop(all);
        landing.land(Landed {
            result,
            took: begun.elapsed(),
        });
    };
    let thread = thread::Builder::new().stack_size(STACK).spawn(sync);
    thread.map_err(|error| {
        Error::new(Kind::Busy, "could not start a thread for a sync; retry").because(error)
    })?;
    all.insert(key, Arc::clone(&flight));
    Ok(joined(flight, true))
}

impl SharedSync {
    fn land(&self, landed: Landed) {
        *lock(&self.landed) = Some(landed);
        self.changed.notify_all();
    }

    /// Waits for its end; none on a timeout.
    fn wait(&self, deadline: Instant) -> Option<Landed> {
        let left = deadline.saturating_duration_since(Instant::now());
        let landed = lock(&self.landed);
        let waited = self
            .changed
            .wait_timeout_while(landed, left, |landed| landed.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn failed(target: Target<'_>, error: std::io::Error) -> Error {
    Error::io(format!("could not sync {}", target.name), error)
}

fn takes_too_long(target: Target<'_>) -> Error {
    Error::new(
        Kind::Busy,
        format!(
            "a sync of {} did not complete within {} s and continues; retry, and check whether its disk is slow or its pool is full (lvs, lvextend)",
            target.name,
            PATIENCE.as_secs()
        ),
    )
}

fn never_catches_up(target: Target<'_>, limit: Duration) -> Error {
    Error::new(
        Kind::Busy,
        format!(
            "could not flush {} within the freeze timeout of {} ms; retry when its write load is lower, or set a larger longestFreeze in the class",
            target.name,
            limit.as_millis()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(file: &File) -> Target<'_> {
        Target { name: "it", file }
    }

    // Each test has a file system that no other test syncs.

    #[test]
    fn a_repeat_joins_the_sync_in_flight_and_the_next_one_begins_another() {
        let file = File::open("/proc").unwrap();
        let key = (false, file.metadata().unwrap().dev());
        let stuck = Arc::<SharedSync>::default();
        IN_FLIGHT.lock().unwrap().insert(key, Arc::clone(&stuck));
        let joined = begin(target(&file)).unwrap();
        assert!(!joined.is_ours && Arc::ptr_eq(&joined.flight, &stuck));
        let joined = joined.flight;
        assert!(joined.wait(Instant::now()).is_none(), "it has not ended");
        IN_FLIGHT.lock().unwrap().remove(&key);
        stuck.land(Landed {
            result: Err(nix::errno::Errno::EIO),
            took: Duration::ZERO,
        });
        let landed = joined.wait(Instant::now()).unwrap();
        assert!(landed.result.is_err());
        flush(&[target(&file)], Duration::MAX).unwrap();
        assert!(!IN_FLIGHT.lock().unwrap().contains_key(&key));
    }

    #[test]
    fn a_limit_that_no_sync_keeps_is_told() {
        let file = File::open("/sys").unwrap();
        let error = flush(&[target(&file)], Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        assert!(error.to_string().contains("longestFreeze"), "{error}");
    }
}
