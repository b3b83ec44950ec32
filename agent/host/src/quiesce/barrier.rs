//! The freeze barrier: the time during which writers are quiesced. It begins for all at once, and ends for all at
//! once, or for each one that is late.
//!
//! Before it, all members are settled, several at a time; the last ones right before it begins, so that they are
//! quiesced soonest after.

use crate::lock;
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Synchronises the threads that quiesce the members.
#[derive(Debug)]
pub(super) struct Barrier {
    /// Maximum duration of the barrier.
    pub(super) limit: Duration,
    /// Number of threads that quiesce members.
    pub(super) holders: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The members below this number are to settle.
    told: usize,
    /// The members below this number settle before the barrier begins.
    early: usize,
    /// Number of members that have settled.
    settled: usize,
    began: Option<Instant>,
    has_ended: bool,
    has_first: bool,
    /// Number of members that are quiesced.
    held: usize,
    /// Number of members that could not be quiesced.
    lost: usize,
    /// Number of members that are released and done.
    left: usize,
}

/// What became of a member that should be quiesced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// It is quiesced.
    Quiesced,
    /// It could not be, or not in time.
    Lost,
}

impl Barrier {
    /// A barrier for this number of threads.
    pub(super) fn new(limit: Duration, holders: usize) -> Self {
        Self {
            limit,
            holders,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait_while(&self, waits: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waiting = self.changed.wait_while(self.state(), |state| waits(state));
        waiting.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the deadline at the latest; the condition may still be false then.
    fn wait_until(
        &self,
        deadline: Instant,
        waits: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let left = deadline.saturating_duration_since(Instant::now());
        let waiting = self
            .changed
            .wait_timeout_while(self.state(), left, |state| waits(state));
        waiting.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Lets the members below a number settle, and waits for them; returns whether they did before the deadline.
    pub(super) fn settle(&self, end: usize, deadline: Instant) -> bool {
        self.state().told = end;
        self.changed.notify_all();
        let state = self.wait_until(deadline, |state| state.settled + state.lost < end);
        state.lost == 0 && state.settled >= end
    }

    /// Waits until the member with this number is to settle; false when it never is.
    pub(super) fn wait_to_settle(&self, number: usize) -> bool {
        let state = self.wait_while(|state| state.told <= number && !state.has_ended);
        state.told > number
    }

    /// Reports that a member has settled.
    pub(super) fn has_settled(&self) {
        self.state().settled += 1;
        self.changed.notify_all();
    }

    /// Opens the barrier, and waits until all members have reported, or it is over; returns whether all are quiesced.
    /// Does not wait for a device that is still flushing once it cannot succeed any more.
    pub(super) fn begin(&self) -> bool {
        let began = Instant::now();
        let mut state = self.state();
        state.began = Some(began);
        state.early = std::mem::replace(&mut state.told, self.holders);
        drop(state);
        self.changed.notify_all();
        let missing = |state: &State| state.held + state.lost < self.holders;
        let state = self.wait_until(began + self.limit, missing);
        state.lost == 0 && !missing(&state)
    }

    /// Ends the barrier, or prevents it from beginning.
    pub(super) fn end(&self) {
        self.state().has_ended = true;
        self.changed.notify_all();
    }

    /// Reports that a member is released.
    pub(super) fn leave(&self) {
        self.state().left += 1;
        self.changed.notify_all();
    }

    /// Waits until this number of members are released, or the timeout; returns whether they are.
    pub(super) fn wait_for_all(&self, count: usize, patience: Duration) -> bool {
        let state = self.wait_until(Instant::now() + patience, |state| state.left < count);
        state.left >= count
    }

    /// The time at which it began.
    pub(super) fn began(&self) -> Option<Instant> {
        self.state().began
    }

    /// Returns true if it has reached its maximum duration.
    pub(super) fn is_over(&self) -> bool {
        let began = self.began();
        began.is_some_and(|began| began.elapsed() >= self.limit)
    }

    /// Waits until it begins for the member with this number; false when it never does. A member that settled early
    /// waits until the last ones, for whom it has begun then, have settled.
    pub(super) fn wait_for_begin(&self, number: usize) -> bool {
        let waits = |state: &State| {
            let some_settle = state.settled + state.lost < self.holders;
            state.began.is_none() || number < state.early && some_settle
        };
        let state = self.wait_while(|state| !state.has_ended && waits(state));
        state.began.is_some()
    }

    /// Reports what became of a member.
    pub(super) fn report(&self, member: Report) {
        let mut state = self.state();
        match member {
            Report::Quiesced => state.held += 1,
            Report::Lost => state.lost += 1,
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until it ends, or has reached its maximum duration: then it cannot succeed any more.
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

    /// Returns true for the first caller.
    pub(super) fn is_first(&self) -> bool {
        !std::mem::replace(&mut self.state().has_first, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn barrier(limit: Duration, holders: usize) -> Barrier {
        Barrier::new(limit, holders)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    /// The work of a thread that quiesces a member.
    fn hold(barrier: &Barrier, number: usize, report: Report) -> bool {
        if !barrier.wait_to_settle(number) {
            return false;
        }
        barrier.has_settled();
        if !barrier.wait_for_begin(number) {
            return false;
        }
        barrier.report(report);
        true
    }

    #[test]
    fn all_are_settled_and_held_before_anybody_goes_on() {
        let barrier = barrier(Duration::from_mins(1), 4);
        thread::scope(|scope| {
            for number in 0..4 {
                let barrier = &barrier;
                scope.spawn(move || {
                    assert!(hold(barrier, number, Report::Quiesced));
                    barrier.wait_for_end();
                    assert!(barrier.state().has_ended);
                });
            }
            assert!(barrier.settle(2, late()));
            assert_eq!(barrier.state().settled, 2);
            assert!(barrier.begin());
            assert_eq!(barrier.state().settled, 4);
            barrier.end();
        });
        assert!(!barrier.is_over());
    }

    #[test]
    fn who_settled_early_waits_for_the_last_one() {
        let barrier = barrier(Duration::from_mins(1), 2);
        thread::scope(|scope| {
            let barrier = &barrier;
            let early = scope.spawn(move || hold(barrier, 0, Report::Quiesced));
            assert!(barrier.settle(1, late()));
            let last = scope.spawn(move || {
                assert!(barrier.wait_to_settle(1));
                assert!(barrier.wait_for_begin(1));
                thread::sleep(Duration::from_millis(20));
                assert_eq!(barrier.state().held, 0);
                barrier.has_settled();
                barrier.report(Report::Quiesced);
            });
            assert!(barrier.begin());
            barrier.end();
            assert!(early.join().unwrap());
            last.join().unwrap();
        });
    }

    #[test]
    fn one_that_is_not_held_is_told_and_one_that_never_begins_lets_all_go() {
        let one_lost = barrier(Duration::from_mins(1), 2);
        thread::scope(|scope| {
            for (number, report) in [Report::Quiesced, Report::Lost].into_iter().enumerate() {
                let barrier = &one_lost;
                scope.spawn(move || hold(barrier, number, report));
            }
            assert!(!one_lost.begin());
        });
        for settles in [0, 1] {
            let never = barrier(Duration::from_mins(1), 1);
            thread::scope(|scope| {
                scope.spawn(|| assert!(!hold(&never, 0, Report::Quiesced)));
                assert!(never.settle(settles, late()));
                never.end();
            });
        }
    }

    #[test]
    fn one_that_cannot_settle_is_told_and_holds_up_nobody() {
        let barrier = barrier(Duration::from_mins(1), 2);
        thread::scope(|scope| {
            let barrier = &barrier;
            scope.spawn(move || hold(barrier, 1, Report::Quiesced));
            scope.spawn(move || {
                assert!(barrier.wait_to_settle(0));
                barrier.report(Report::Lost);
            });
            assert!(!barrier.settle(1, late()));
            barrier.end();
        });
    }

    #[test]
    fn who_never_settles_or_lets_go_is_waited_for_until_the_deadline() {
        let barrier = barrier(Duration::from_mins(1), 1);
        let soon = || Instant::now() + Duration::from_millis(20);
        assert!(!barrier.settle(1, soon()));
        barrier.end();
        assert!(!barrier.wait_for_all(1, Duration::from_millis(20)));
        barrier.leave();
        assert!(barrier.wait_for_all(1, Duration::from_mins(1)));
    }

    #[test]
    fn one_that_still_flushes_is_not_waited_for_when_it_is_over() {
        let barrier = barrier(Duration::from_millis(20), 1);
        assert!(!barrier.begin());
        assert!(barrier.is_over());
    }

    #[test]
    fn nobody_waits_for_longer_than_the_limit() {
        let barrier = barrier(Duration::from_millis(50), 2);
        thread::scope(|scope| {
            // The other member never reports.
            scope.spawn(|| {
                assert!(hold(&barrier, 0, Report::Quiesced));
                barrier.wait_for_end();
                assert!(barrier.is_over());
                barrier.report(Report::Lost);
            });
            assert!(!barrier.begin());
        });
    }
}
