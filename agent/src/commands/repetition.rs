//! Repeats a call to an agent as long as there is progress.

use std::time::{Duration, Instant};

use drumlin_core::fail::time_lapse;

use super::print::note;

/// Pause between attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Timeout without progress: the command gives up when neither its result nor the message of the agent has changed for
/// this long.
const PATIENCE: Duration = Duration::from_mins(5);

/// The attempts of a command.
pub(super) struct Repetition {
    /// What it waits for.
    why: String,
    /// The last progress.
    since: Instant,
}

impl Repetition {
    /// Before the first attempt.
    pub(super) fn begin() -> Self {
        Self {
            why: String::new(),
            since: Instant::now(),
        }
    }

    /// Notes progress beside the messages of the agent.
    pub(super) fn progress(&mut self) {
        self.since = Instant::now();
    }

    /// Says once what the next attempt waits for, and waits.
    ///
    /// # Errors
    /// What it waits for, if there was no progress for too long.
    pub(super) async fn wait(&mut self, why: &str) -> Result<(), String> {
        if self.why != why {
            note(why);
            why.clone_into(&mut self.why);
            self.progress();
        }
        if self.since.elapsed() >= time_lapse(PATIENCE) {
            return Err(self.why.clone());
        }
        tokio::time::sleep(time_lapse(PAUSE)).await;
        Ok(())
    }
}
