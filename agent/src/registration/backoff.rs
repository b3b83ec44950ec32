//! The pauses between attempts to register.

use std::time::Duration;

/// The first pause. Each socket that kubelet sees anew takes the driver away from its node for a second or two.
const SHORTEST: Duration = Duration::from_secs(1);
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
    fn pauses_double_from_a_second_to_a_minute() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u64> = (0..8).map(|_| backoff.pause().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
