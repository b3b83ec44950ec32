//! Named points where a test build can be stopped: between any two steps of a change.
//!
//! `DRUMLIN_FAIL=<name>[:<hits>]` makes the process kill itself (as `kill -9` would) when it comes
//! to the point `<name>` for the `<hits>`th time (the first when left out); with `DRUMLIN_FAIL_BY=stop` it stops there, as by
//! `kill -STOP`, and goes on when it is told to. Release builds have no such points.

/// Kills this process with SIGKILL if the environment asks for it at `name`; does nothing in a release build.
#[cfg(debug_assertions)]
pub fn point(name: &str) {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    };

    use nix::sys::signal::{Signal, kill, raise};

    static ARMED: OnceLock<Option<(String, AtomicU32)>> = OnceLock::new();
    let armed = ARMED.get_or_init(|| {
        let value = std::env::var("DRUMLIN_FAIL").ok()?;
        let (wanted, hits) = match value.rsplit_once(':') {
            Some((wanted, hits)) => (wanted.to_owned(), hits.parse().unwrap_or(1)),
            None => (value, 1),
        };
        Some((wanted, AtomicU32::new(hits)))
    });
    if let Some((wanted, left)) = armed
        && wanted == name
        && left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        let stops = std::env::var("DRUMLIN_FAIL_BY").is_ok_and(|how| how == "stop");
        if stops {
            // To this thread: one for the process would be taken by any, and this one would go on a while.
            let _ = raise(Signal::SIGSTOP);
            return;
        }
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
