//! Output of commands.

use std::io::Write;

/// Prints to standard output; a closed pipe is no error.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints styled text to standard output: with its colours on a terminal, without them elsewhere, and as `NO_COLOR` says.
pub(crate) fn print_styled(text: &str) {
    let _ = anstream::stdout().write_all(text.as_bytes());
}

/// Prints progress to standard error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
