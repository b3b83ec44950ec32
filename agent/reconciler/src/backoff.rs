//! What a gRPC code leads to: when the same call is made again, and what the operator is told meanwhile.

use std::time::Duration;

use tonic::Code;

use crate::{
    client::Failure,
    record::{State, Verdict},
};

/// What to do about a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
    pub(crate) state: State,
    pub(crate) reason: &'static str,
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
        Code::Aborted => rule(1, 10, State::Reconciling, "OperationPending"),
        Code::Unavailable => rule(1, 30, State::Reconciling, "AgentUnreachable"),
        // What became of the call is not known: the same call again tells.
        Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
            rule(1, 60, State::Reconciling, "OutcomeUnknown")
        }
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
    /// How long to wait after the `attempts`th failure in a row: twice as long each time, spread by `chance` (0 to 1).
    pub(crate) fn pause(&self, attempts: u32, chance: f64) -> Duration {
        let doubled = self
            .first
            .saturating_mul(2_u32.saturating_pow(attempts.saturating_sub(1).min(20)));
        // Between three quarters and all of it, so that a thousand objects do not come back in one instant.
        doubled
            .min(self.longest)
            .mul_f64(0.75 + 0.25 * chance.clamp(0.0, 1.0))
    }
}

/// What the operator is told of a failure.
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
    fn a_pause_doubles_up_to_its_longest() {
        let rule = rule(Code::Aborted);
        let seconds: Vec<u64> = (1..=6)
            .map(|attempts| rule.pause(attempts, 1.0).as_secs())
            .collect();
        assert_eq!(seconds, [1, 2, 4, 8, 10, 10]);
        assert!(rule.pause(3, 0.0) >= Duration::from_secs(3));
        assert_eq!(rule.pause(u32::MAX, 1.0), Duration::from_secs(10));
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
