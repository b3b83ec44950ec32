//! Output of commands.

use std::io::Write;

use serde::Serialize;

use crate::cli::DataOutput;

/// Prints to standard output; a closed pipe is no error.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints styled text to standard output: with its colours on a terminal, without them elsewhere, and as `NO_COLOR` says.
pub(crate) fn print_styled(text: &str) {
    let _ = anstream::stdout().write_all(text.as_bytes());
}

/// Prints what a command has done: as data for programs, as text for people.
pub(crate) fn print_outcome(output: Option<DataOutput>, data: &impl Serialize, text: &str) {
    match DataOutput::form(output).data(data) {
        Some(data) => print(&data),
        None => print(text),
    }
}

/// Prints for people what a command is going to do: to standard error if a program reads what it has done.
pub(crate) fn announce(output: Option<DataOutput>, text: &str) {
    match output {
        None => print(text),
        Some(_) => note(text.trim_end()),
    }
}

/// Prints progress to standard error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
