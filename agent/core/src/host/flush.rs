//! Syncs of what is mounted or open, before anybody takes a lock or suspends a device.
//!
//! A freeze and a suspend sync, too, and nothing interrupts them: on a slow disk, or in a thin pool that is full, they
//! keep their lock from whoever could help. So all that was written is on the disk before. Each sync runs on a thread of
//! its own: a caller gives up in time, and its repeat joins the sync that is in flight.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::{FileTypeExt, MetadataExt},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{Error, Kind, Result};

/// So long a caller waits for syncs: less than the minute that callers of ours have.
const PATIENCE: Duration = Duration::from_secs(30);
/// So often something is synced until what is left is little.
const ROUNDS: usize = 5;
/// The stack of a thread that does one system call.
const STACK: usize = 64 << 10;

/// What is synced: a file system, by a directory in it, or a block device; with its name for people.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// Its name.
    pub name: &'a str,
    /// A directory, or the device.
    pub file: &'a File,
}

/// A sync, which several callers may wait for.
#[derive(Debug, Default)]
struct SharedSync {
    landed: Mutex<Option<Landed>>,
    changed: Condvar,
}

/// What came of a sync, and how long it took.
#[derive(Debug, Clone, Copy)]
struct Landed {
    result: nix::Result<()>,
    took: Duration,
}

/// The syncs in flight, by what they sync: whether that is a block device, and the number of it or of the file system.
static IN_FLIGHT: Mutex<BTreeMap<(bool, u64), Arc<SharedSync>>> = Mutex::new(BTreeMap::new());

/// Syncs all of them at a time, and again until a sync takes but a part of `limit`: so long the last one may take, which
/// is done while writers wait. A repeat joins what is in flight.
///
/// # Errors
/// `Busy` when that takes too long, or more is written than the disk takes within the limit; `Io` when a sync fails.
pub fn flush(targets: &[Target<'_>], limit: Duration) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut left = targets.to_vec();
    let mut slow = None;
    for _ in 0..ROUNDS {
        let flights = left.into_iter().map(|target| Ok((target, begin(target)?)));
        let flights: Vec<_> = flights.collect::<Result<_>>()?;
        (left, slow) = (Vec::new(), None);
        for (target, (flight, is_ours)) in flights {
            let landed = flight
                .wait(deadline)
                .ok_or_else(|| takes_too_long(target))?;
            landed
                .result
                .map_err(|errno| failed(target, errno.into()))?;
            if landed.took >= limit {
                slow = Some(target);
            }
            // One that had begun before leaves out what was written since.
            if !is_ours || landed.took >= limit / 4 {
                left.push(target);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
    }
    slow.map_or(Ok(()), |target| Err(never_catches_up(target, limit)))
}

/// Begins a sync, or finds the one in flight: that, and whether it was begun.
fn begin(target: Target<'_>) -> Result<(Arc<SharedSync>, bool)> {
    let io = |error| failed(target, error);
    let metadata = target.file.metadata().map_err(io)?;
    let is_device = metadata.file_type().is_block_device();
    let number = if is_device {
        metadata.rdev()
    } else {
        metadata.dev()
    };
    let key = (is_device, number);
    let file = target.file.try_clone().map_err(io)?;
    let mut all = IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(flight) = all.get(&key) {
        return Ok((Arc::clone(flight), false));
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
        // The first one tells of writes that failed before it, too, such as in a pool that was full then.
        let result = sync().or_else(|_| sync());
        // It is not held open any longer than that.
        drop(file);
        let mut all = IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner);
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
    Ok((flight, true))
}

impl SharedSync {
    fn land(&self, landed: Landed) {
        *self.landed.lock().unwrap_or_else(PoisonError::into_inner) = Some(landed);
        self.changed.notify_all();
    }

    /// Waits for its end; none when that is not before the deadline.
    fn wait(&self, deadline: Instant) -> Option<Landed> {
        let left = deadline.saturating_duration_since(Instant::now());
        let landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
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

    // Each test has a file system that no other one syncs.

    #[test]
    fn a_repeat_joins_the_sync_in_flight_and_the_next_one_begins_another() {
        let file = File::open("/proc").unwrap();
        let key = (false, file.metadata().unwrap().dev());
        let stuck = Arc::<SharedSync>::default();
        IN_FLIGHT.lock().unwrap().insert(key, Arc::clone(&stuck));
        let (joined, is_ours) = begin(target(&file)).unwrap();
        assert!(!is_ours && Arc::ptr_eq(&joined, &stuck));
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
