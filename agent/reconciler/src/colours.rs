//! The colours of what people read. Whoever prints a text removes them where they do not belong.

use anstyle::{AnsiColor, Style};

/// What is made.
pub const GREEN: Style = AnsiColor::Green.on_default();
/// What changes, or is not yet as it shall be.
pub const YELLOW: Style = AnsiColor::Yellow.on_default();
/// What is destroyed, or needs a person.
pub const RED: Style = AnsiColor::Red.on_default();
