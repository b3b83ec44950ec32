//! What a command prints for its user.

use std::io::Write;

/// Prints to standard output; a reader who has gone away is no error.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Tells how it goes, where errors go.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
