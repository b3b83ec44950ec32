//! `drumlin completions`: the completion script for a shell.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::print::print;
use crate::cli::Cli;

/// Prints the script.
pub(crate) fn run(shell: Shell) {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "drumlin", &mut script);
    print(&String::from_utf8_lossy(&script));
}
