//! `drumlin thaw-watchdog`: the thaw watchdog, which thaws and resumes what was quiesced if the agent dies.

use std::{io, os::fd::AsFd, process::ExitCode};

use drumlin_core::host::quiesce::{self, WatchdogReport};

/// Watches the agent until it reports the end of the freeze barrier. Standard input is a socket to the agent.
#[expect(clippy::print_stderr, reason = "the agent that would log it is gone")]
pub(crate) fn run() -> ExitCode {
    let input = io::stdin().as_fd().try_clone_to_owned();
    match input.and_then(quiesce::serve) {
        Ok(WatchdogReport::Nothing) => ExitCode::SUCCESS,
        Ok(WatchdogReport::Death(images)) => {
            eprintln!(
                "drumlin thaw-watchdog: the agent died while {images} images were quiesced; they were thawed and resumed"
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!(
                "drumlin thaw-watchdog: {error}; do not run this command by hand, the agent starts it for a group snapshot"
            );
            ExitCode::FAILURE
        }
    }
}
