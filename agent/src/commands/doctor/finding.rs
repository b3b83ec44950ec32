//! What was found: what is wrong, with which object, and what mends it.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

use super::check::{Check, Severity};

/// Something that is wrong, or worth knowing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// How bad it is.
    pub(super) severity: Severity,
    /// What was looked for.
    pub(super) check: Check,
    /// What it is about: a path, a device, an object, a class.
    pub(super) object: String,
    /// What is wrong.
    pub(super) message: String,
    /// Since when, in RFC 3339, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<String>,
    /// The command that mends it, for a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
    /// What to do, where no command can do it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

impl Finding {
    /// A finding about an object, with what is wrong.
    pub(super) fn new(check: Check, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: check.severity(),
            check,
            object: object.into(),
            message: message.into(),
            since: None,
            command: None,
            advice: None,
        }
    }

    /// A finding about a file or directory.
    pub(super) fn at(check: Check, path: &Path, message: impl Into<String>) -> Self {
        Self::new(check, path.display().to_string(), message)
    }

    /// Something that could not be looked at, and why.
    pub(super) fn not_checked(object: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self::new(Check::NotChecked, object, format!("not checked: {why}"))
    }

    /// Adds since when.
    #[must_use]
    pub(super) fn since(mut self, since: Option<String>) -> Self {
        self.since = since;
        self
    }

    /// Adds since when a file is as it is.
    #[must_use]
    pub(super) fn since_change_of(self, path: &Path) -> Self {
        let changed = fs::metadata(path).and_then(|file| file.modified()).ok();
        self.since(changed.and_then(drumlin_reconciler::rfc3339))
    }

    /// Adds the command that mends it.
    #[must_use]
    pub(super) fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// Adds what to do.
    #[must_use]
    pub(super) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

/// A word for a shell, quoted where it must be.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-:+@%,=".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A path for a shell.
pub(super) fn shell(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_quoted_word_as_it_was() {
        for (word, line) in [
            ("/dev/loop7", "/dev/loop7"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("$(x)", "'$(x)'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), line);
        }
    }
}
