//! Repeats a call to an agent as long as there is progress.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use drumlin_core::fail::time_lapse;
use drumlin_crd::Progress;
use drumlin_reconciler::Incomplete;

use super::{print::note, progress_bars::ProgressBars};

/// Pause between attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Timeout without progress: the command gives up when neither its result nor the message of the agent has changed for
/// this long.
const PATIENCE: Duration = Duration::from_mins(5);

/// Interval at which it is said how far an operation is, where no bar shows it.
const SAID: Duration = Duration::from_secs(10);

/// The attempts of a command.
pub(super) struct Repetition {
    /// What it waits for.
    why: String,
    /// The last progress.
    since: Instant,
    /// When it was said last.
    said: Option<Instant>,
    bars: ProgressBars,
}

impl Repetition {
    /// Before the first attempt.
    pub(super) fn begin() -> Self {
        Self {
            why: String::new(),
            since: Instant::now(),
            said: None,
            bars: ProgressBars::default(),
        }
    }

    /// Notes progress beside the messages of the agent.
    pub(super) fn progress(&mut self) {
        self.since = Instant::now();
    }

    /// Says what the next attempt waits for, or how far the operation is that it waits for, and waits.
    ///
    /// # Errors
    /// What it waits for, if there was no progress for too long.
    pub(super) async fn wait(
        &mut self,
        why: &str,
        progress: Option<Progress>,
    ) -> Result<(), String> {
        let is_shown = progress.is_some() && !self.bars.is_hidden();
        let is_frequent = progress.is_some() && self.said.is_some_and(|said| said.elapsed() < SAID);
        let shown = progress.map(|progress| (progress.operation.clone(), progress));
        self.bars.show(shown.into_iter().collect());
        if self.why != why {
            if !is_shown && !is_frequent {
                note(why);
                self.said = Some(Instant::now());
            }
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

/// Repeats an operation while the agent goes on with it.
///
/// # Errors
/// Its own, or that there was no progress for too long.
pub(super) async fn until_complete<T>(
    mut attempt: impl AsyncFnMut() -> Result<T, Incomplete>,
) -> anyhow::Result<T> {
    let mut repetition = Repetition::begin();
    loop {
        match attempt().await {
            Ok(result) => return Ok(result),
            Err(Incomplete::Failed(error)) => return Err(error.into()),
            Err(Incomplete::Pending { why, progress }) => {
                let waited = repetition.wait(&why, progress).await;
                waited.map_err(|why| {
                    anyhow!("{why}; the agent goes on with it, and the same command waits for it")
                })?;
            }
        }
    }
}
