//! Fail points: named places, between any two steps of an operation, where a test build can be killed.
//!
//! `DRUMLIN_FAIL=<name>[:<hits>]` makes the process kill itself (like `kill -9`) when it reaches the fail point
//! `<name>` for the `<hits>`th time (default: the first). Of several names separated by commas, the first one reached
//! is used. The process prints its name to standard error. With `DRUMLIN_FAIL_BY=stop` the process stops there, like
//! `kill -STOP`, and continues after SIGCONT. With `DRUMLIN_FAIL_BY=pause` the operation pauses there for a second, each
//! time. Release builds have no fail points.

/// Kills this process with SIGKILL if the environment asks for it at `name`; does nothing in a release build.
#[cfg(debug_assertions)]
pub fn point(name: &str) {
    use std::{
        io::Write,
        sync::{
            OnceLock,
            atomic::{AtomicU32, Ordering},
        },
    };

    use nix::sys::signal::{Signal, kill, raise};

    /// Pause of an operation.
    const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
    static ARMED: OnceLock<Vec<(String, AtomicU32)>> = OnceLock::new();
    let armed = ARMED.get_or_init(|| {
        let value = std::env::var("DRUMLIN_FAIL").unwrap_or_default();
        let points = value.split(',').map(|point| {
            let (wanted, hits) = match point.rsplit_once(':') {
                Some((wanted, hits)) => (wanted, hits.parse().unwrap_or(1)),
                None => (point, 1),
            };
            (wanted.to_owned(), AtomicU32::new(hits))
        });
        points.collect()
    });
    let Some((_, left)) = armed.iter().find(|(wanted, _)| wanted == name) else {
        return;
    };
    let how = std::env::var("DRUMLIN_FAIL_BY").unwrap_or_default();
    if how == "pause" {
        std::thread::sleep(PAUSE);
    } else if left.fetch_sub(1, Ordering::SeqCst) == 1 {
        if how == "stop" {
            // Sent to this thread: a signal for the process could be delivered to another thread, and this one would
            // continue for a while.
            let _ = raise(Signal::SIGSTOP);
            return;
        }
        let _ = writeln!(std::io::stderr(), "killed at {name}");
        // No destructor and no other thread may run after this point: only SIGKILL guarantees that.
        let _ = kill(nix::unistd::getpid(), Signal::SIGKILL);
        loop {
            std::thread::park();
        }
    }
}

/// Does nothing: fail points exist in test builds only.
#[cfg(not(debug_assertions))]
#[inline]
pub fn point(_name: &str) {}

/// A duration as a test build waits for it: `DRUMLIN_TIME_LAPSE=<factor>` divides it, so that hours pass in seconds.
/// Nothing becomes shorter than 20 ms by it: what polls must not spin.
#[cfg(debug_assertions)]
pub fn time_lapse(time: std::time::Duration) -> std::time::Duration {
    const SHORTEST: std::time::Duration = std::time::Duration::from_millis(20);
    static FACTOR: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let factor = *FACTOR.get_or_init(|| {
        let told = std::env::var("DRUMLIN_TIME_LAPSE").ok();
        told.and_then(|told| told.parse().ok()).unwrap_or(1).max(1)
    });
    (time / factor).max(time.min(SHORTEST))
}

/// The time of the day as a test build sees it. `DRUMLIN_CLOCK` names a file with a time, in seconds since 1970; since then
/// the clock runs as many times as fast as `DRUMLIN_TIME_LAPSE` says. To write another time sets the clock.
#[cfg(debug_assertions)]
pub fn now() -> std::time::SystemTime {
    use std::time::{Duration, SystemTime};
    let now = SystemTime::now();
    let base = std::env::var("DRUMLIN_CLOCK").ok();
    let base = base.and_then(|path| std::fs::read_to_string(path).ok());
    let base = base.and_then(|text| text.trim().parse().ok());
    let Some(base) = base.map(|base| SystemTime::UNIX_EPOCH + Duration::from_secs_f64(base)) else {
        return now;
    };
    base + clock_time(now.duration_since(base).unwrap_or_default())
}

/// What the clock of a test build shows while `passed` passes: where `DRUMLIN_CLOCK` sets it, as many times as much.
#[cfg(debug_assertions)]
pub fn clock_time(passed: std::time::Duration) -> std::time::Duration {
    if std::env::var_os("DRUMLIN_CLOCK").is_none() {
        return passed;
    }
    let real = std::time::Duration::from_hours(1);
    // An hour as it is waited for shows the factor.
    passed.mul_f64(real.as_secs_f64() / time_lapse(real).as_secs_f64())
}

/// Returns `passed`: a release build ignores the variables.
#[cfg(not(debug_assertions))]
#[inline]
pub fn clock_time(passed: std::time::Duration) -> std::time::Duration {
    passed
}

/// The time of the day: a release build ignores the variable.
#[cfg(not(debug_assertions))]
#[inline]
pub fn now() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

/// Returns `time`: a release build ignores the variable.
#[cfg(not(debug_assertions))]
#[inline]
pub fn time_lapse(time: std::time::Duration) -> std::time::Duration {
    time
}
