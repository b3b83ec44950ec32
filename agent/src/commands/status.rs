//! `drumlin status`: the status of all objects.

use std::{
    io::{IsTerminal, stdout},
    path::Path,
    process::ExitCode,
    thread::sleep,
    time::Duration,
};

use drumlin_reconciler::status::{StatusTable, load};

use super::print::{print, print_styled};
use crate::cli::{Output, StatusArguments};

/// Exit code if any object is not ready.
const NOT_READY: u8 = 3;
/// Interval at which the state files are read while the status is watched.
const INTERVAL: Duration = Duration::from_secs(1);
/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints the table, with `--watch` whenever it has changed.
pub(crate) fn run(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let (state_dir, output) = (&arguments.state_dir, arguments.output);
    if !arguments.watch {
        return show(state_dir, output);
    }
    let mut shown = String::new();
    loop {
        let text = text(&load(state_dir)?, output);
        if text != shown {
            if stdout().is_terminal() {
                print(CLEAR);
            } else if !shown.is_empty() {
                print_styled("\n");
            }
            print_styled(&text);
            shown = text;
        }
        sleep(INTERVAL);
    }
}

/// Prints the table once.
pub(super) fn show(state_dir: &Path, output: Option<Output>) -> anyhow::Result<ExitCode> {
    let table = load(state_dir)?;
    print_styled(&text(&table, output));
    Ok(if table.is_all_ready() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_READY)
    })
}

fn text(table: &StatusTable, output: Option<Output>) -> String {
    table.render(Output::form(output))
}
