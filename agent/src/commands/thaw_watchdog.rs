//! `drumlin thaw-watchdog`: the thaw watchdog, which thaws and resumes what was quiesced if the agent dies.

use std::{io, os::fd::AsFd, process::ExitCode, time::Duration};

use drumlin_core::host::quiesce::{self, WatchdogReport};

use crate::cli::ThawWatchdogArguments;

/// The command: as the agent starts it, or as the service manager does when the agent has ended.
pub(crate) fn run(arguments: &ThawWatchdogArguments) -> ExitCode {
    match arguments.wait {
        Some(seconds) => wait(Duration::from_secs(seconds)),
        None => watch(),
    }
}

/// Waits until no thaw watchdog is at work: what ends the rest of a service afterwards would end it, too.
#[expect(clippy::print_stderr, reason = "the journal of the service has it")]
fn wait(limit: Duration) -> ExitCode {
    match quiesce::wait_for_watchdogs(limit) {
        Ok(left) if left.is_empty() => ExitCode::SUCCESS,
        Ok(left) => {
            eprintln!(
                "drumlin thaw-watchdog: processes {left:?} have not resumed everything within {} s; the next start does",
                limit.as_secs()
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("drumlin thaw-watchdog: could not look for thaw watchdogs: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Watches the agent until it reports the end of the freeze barrier. Standard input is a socket to the agent.
#[expect(clippy::print_stderr, reason = "the agent that would log it is gone")]
fn watch() -> ExitCode {
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
