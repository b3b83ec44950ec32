//! How values are written in logs.

use std::{fmt, time::Duration};

/// Maximum number of characters of caller-supplied text in a log line.
const LOGGED_CHARACTERS: usize = 300;

/// Milliseconds, to the microsecond.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    // Computed from whole microseconds, to avoid long binary fractions in the output.
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Caller-supplied text, escaped to one line and truncated.
pub(crate) struct Quoted<'a>(pub(crate) &'a dyn fmt::Display);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let mut left = text.chars();
        for character in left.by_ref().take(LOGGED_CHARACTERS) {
            if character.is_control() {
                write!(f, "{}", character.escape_debug())?;
            } else {
                write!(f, "{character}")?;
            }
        }
        if left.next().is_some() {
            f.write_str("…")?;
        }
        Ok(())
    }
}
