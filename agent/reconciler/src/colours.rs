//! The colours of what people read. Whoever prints a text removes them where they do not belong.

use anstyle::{AnsiColor, Style};

/// What is made.
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
/// What changes, or is not yet as it shall be.
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
/// What is destroyed, or needs a person.
pub(crate) const RED: Style = AnsiColor::Red.on_default();
