//! The pauses between attempts to register.

use std::time::Duration;

/// The first pause. Kubelet 1.36 and newer repeat a failed registration by themselves after half a second, at the next turn
/// of a loop that runs once a second: with their second attempt done, a new socket takes no driver away that is registered.
const SHORTEST: Duration = Duration::from_secs(2);
/// The longest pause.
const LONGEST: Duration = Duration::from_mins(1);

/// Pauses that double with each failure.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: SHORTEST }
    }
}

impl Backoff {
    /// The pause before the next attempt.
    pub(super) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = LONGEST.min(pause * 2);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_two_seconds_to_a_minute() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u64> = (0..7).map(|_| backoff.pause().as_secs()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60]);
    }
}
