//! The retry rule of each gRPC code: when the call is retried, and what the operator is shown meanwhile.

use std::time::Duration;

use tonic::Code;

use crate::{
    client::Failure,
    record::{State, Verdict},
};

/// A retry rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
    pub(crate) state: State,
    pub(crate) reason: &'static str,
}

/// The reason of an object whose call failed with a code.
pub fn reason_of(code: Code) -> &'static str {
    rule(code).reason
}

/// The rule for a code.
pub(crate) fn rule(code: Code) -> Rule {
    let rule = |first, longest, state, reason| Rule {
        first: Duration::from_secs(first),
        longest: Duration::from_secs(longest),
        state,
        reason,
    };
    match code {
        // The agent continues the operation; repeating the call reports its progress.
        Code::Aborted | Code::DeadlineExceeded => {
            rule(1, 10, State::Reconciling, "OperationPending")
        }
        Code::Unavailable => rule(1, 30, State::Reconciling, "Unavailable"),
        // The outcome of the call is unknown: repeating it is idempotent and reports it.
        Code::Cancelled | Code::Unknown => rule(1, 60, State::Reconciling, "OutcomeUnknown"),
        Code::ResourceExhausted => rule(30, 600, State::Reconciling, "InsufficientCapacity"),
        Code::FailedPrecondition => rule(5, 300, State::Reconciling, "FailedPrecondition"),
        Code::NotFound => rule(60, 60, State::Reconciling, "DependencyNotFound"),
        Code::InvalidArgument => rule(3600, 3600, State::Stalled, "InvalidArgument"),
        Code::AlreadyExists => rule(3600, 3600, State::Stalled, "NameConflict"),
        Code::OutOfRange => rule(3600, 3600, State::Stalled, "OutOfRange"),
        Code::Unimplemented => rule(3600, 3600, State::Stalled, "Unimplemented"),
        Code::PermissionDenied | Code::Unauthenticated => {
            rule(3600, 3600, State::Stalled, "PermissionDenied")
        }
        _ => rule(5, 300, State::Reconciling, "InternalError"),
    }
}

impl Rule {
    /// The delay before the next attempt, given the delay `before` this failure: about doubled each time, with jitter
    /// from `chance` (0 to 1) so that a thousand objects that failed together do not retry together.
    pub(crate) fn pause(&self, before: Option<Duration>, chance: f64) -> Duration {
        let chance = chance.clamp(0.0, 1.0);
        let (least, most) = match before {
            None => (self.first.mul_f64(0.75), self.first),
            Some(before) => (self.first, before.min(self.longest) * 3),
        };
        let spread = most.saturating_sub(least).mul_f64(chance);
        least.saturating_add(spread).min(self.longest)
    }
}

/// The condition that a failure is shown as.
pub(crate) fn verdict(failure: &Failure) -> Verdict {
    let rule = rule(failure.code);
    Verdict {
        state: rule.state,
        reason: rule.reason,
        message: format!("{}: {}", failure.rpc, failure.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_or_so_up_to_its_longest() {
        let rule = rule(Code::Aborted);
        let mut pause = None;
        let mut seconds = Vec::new();
        for _ in 0..6 {
            pause = Some(rule.pause(pause, 0.5));
            seconds.push(pause.unwrap().as_secs_f64().round());
        }
        assert_eq!(seconds, [1.0, 2.0, 3.0, 5.0, 8.0, 10.0]);
        assert!(rule.pause(Some(Duration::from_secs(4)), 0.0) >= rule.first);
        assert_eq!(rule.pause(Some(Duration::MAX), 1.0), rule.longest);
    }

    #[test]
    fn pauses_of_many_are_spread() {
        let rule = rule(Code::Internal);
        let before = Some(Duration::from_secs(20));
        let pauses: std::collections::HashSet<Duration> = (0..100)
            .map(|chance| rule.pause(before, f64::from(chance) / 100.0))
            .collect();
        assert!(pauses.len() > 90);
    }

    #[test]
    fn only_what_can_never_work_is_stalled() {
        for code in [
            Code::InvalidArgument,
            Code::AlreadyExists,
            Code::OutOfRange,
            Code::Unimplemented,
        ] {
            assert_eq!(rule(code).state, State::Stalled, "{code:?}");
        }
        for code in [
            Code::Aborted,
            Code::Unavailable,
            Code::DeadlineExceeded,
            Code::ResourceExhausted,
            Code::FailedPrecondition,
            Code::NotFound,
            Code::Internal,
        ] {
            assert_eq!(rule(code).state, State::Reconciling, "{code:?}");
        }
    }
}
