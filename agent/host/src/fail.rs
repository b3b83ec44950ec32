//! Named points where a test build can be stopped: between any two steps of a change.
//!
//! `DRUMLIN_FAIL=<name>[:<hits>]` makes the process kill itself (as `kill -9` would) when it comes
//! to the point `<name>` for the `<hits>`th time (the first when left out); of several names with commas between them, the
//! first one that it comes to. It says on its standard error which one that is. With `DRUMLIN_FAIL_BY=stop` it stops there,
//! as by `kill -STOP`, and goes on when it is told to. Release builds have no such points.

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
    let found = armed.iter().find(|(wanted, _)| wanted == name);
    if let Some((_, left)) = found
        && left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        let stops = std::env::var("DRUMLIN_FAIL_BY").is_ok_and(|how| how == "stop");
        if stops {
            // To this thread: one for the process would be taken by any, and this one would go on a while.
            let _ = raise(Signal::SIGSTOP);
            return;
        }
        let _ = writeln!(std::io::stderr(), "killed at {name}");
        // Nothing may run after this instant, no destructor and no other thread: only SIGKILL does that.
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

/// A time that a test build can be told to make shorter, in milliseconds, by a variable of its environment.
#[cfg(debug_assertions)]
pub fn shortened(variable: &str, time: std::time::Duration) -> std::time::Duration {
    let told = std::env::var(variable).ok();
    let told = told.and_then(|told| told.parse().ok());
    told.map_or(time, std::time::Duration::from_millis)
}

/// The time itself: a release build is told nothing.
#[cfg(not(debug_assertions))]
#[inline]
pub fn shortened(_variable: &str, time: std::time::Duration) -> std::time::Duration {
    time
}
