//! The time in which writers are held: begun for all at once, ended for all at once, or for each that comes too late.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// What those who hold writers wait for, and are waited for by.
#[derive(Debug)]
pub(super) struct Window {
    /// The longest that it may be open.
    pub(super) limit: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    began: Option<Instant>,
    has_ended: bool,
    has_first: bool,
    /// So many have said that their writers are held, and so many that they are not.
    held: usize,
    lost: usize,
}

impl Window {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, waits: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waiting = self.changed.wait_while(self.state(), |state| waits(state));
        waiting.unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens it, and waits until each of so many has said what became of its writers: whether all are held.
    pub(super) fn begin(&self, writers: usize) -> bool {
        self.state().began = Some(Instant::now());
        self.changed.notify_all();
        let state = self.wait_while(|state| state.held + state.lost < writers);
        state.lost == 0
    }

    /// Ends it, or has it never begin.
    pub(super) fn end(&self) {
        self.state().has_ended = true;
        self.changed.notify_all();
    }

    /// When it began.
    pub(super) fn began(&self) -> Option<Instant> {
        self.state().began
    }

    /// Whether it has been open for as long as it may.
    pub(super) fn is_over(&self) -> bool {
        let began = self.began();
        began.is_some_and(|began| began.elapsed() >= self.limit)
    }

    /// Waits until it begins: false when it never does.
    pub(super) fn wait_for_begin(&self) -> bool {
        let state = self.wait_while(|state| state.began.is_none() && !state.has_ended);
        state.began.is_some()
    }

    /// Says whether some writers are held.
    pub(super) fn tell(&self, is_held: bool) {
        let mut state = self.state();
        if is_held {
            state.held += 1;
        } else {
            state.lost += 1;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until it ends, or has been open for too long: then nothing can come of it any more.
    pub(super) fn wait_for_end(&self) {
        let mut state = self.state();
        while !state.has_ended {
            let open = state.began.map_or(Duration::ZERO, |began| began.elapsed());
            let Some(left) = self.limit.checked_sub(open).filter(|left| !left.is_zero()) else {
                return;
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether who asks is the first one.
    pub(super) fn is_first(&self) -> bool {
        !std::mem::replace(&mut self.state().has_first, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn all_are_held_before_anybody_goes_on() {
        let window = Window::new(Duration::from_mins(1));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    assert!(window.wait_for_begin());
                    window.tell(true);
                    window.wait_for_end();
                    assert!(window.state().has_ended);
                });
            }
            assert!(window.begin(4));
            window.end();
        });
        assert!(!window.is_over());
    }

    #[test]
    fn one_that_is_not_held_is_told_and_one_that_never_begins_lets_all_go() {
        let window = Window::new(Duration::from_mins(1));
        thread::scope(|scope| {
            for is_held in [true, false] {
                let window = &window;
                scope.spawn(move || {
                    window.wait_for_begin();
                    window.tell(is_held);
                });
            }
            assert!(!window.begin(2));
        });
        let never = Window::new(Duration::from_mins(1));
        thread::scope(|scope| {
            scope.spawn(|| assert!(!never.wait_for_begin()));
            never.end();
        });
    }

    #[test]
    fn nobody_waits_for_longer_than_the_limit() {
        let window = Window::new(Duration::from_millis(50));
        thread::scope(|scope| {
            // The other one never says anything.
            scope.spawn(|| {
                assert!(window.wait_for_begin());
                window.tell(true);
                window.wait_for_end();
                assert!(window.is_over());
                window.tell(false);
            });
            assert!(!window.begin(2));
        });
    }
}
