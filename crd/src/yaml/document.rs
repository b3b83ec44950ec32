//! Reading and writing YAML documents, and their errors.

use std::fmt;

use serde::{
    Serialize,
    de::{DeserializeOwned, DeserializeSeed},
};
use serde_path_to_error::Segment;
use serde_yaml::Value;

use super::{
    Location, nearest,
    strict_value::{Node, Notes},
};

/// Error of reading YAML: problem and position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlError {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// Description of the problem, with the path of the field if known.
    pub message: String,
}

/// One document, and the ambiguous words in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The document; null if there is none.
    pub value: Value,
    /// Words without quotes that YAML 1.1, as used by kubectl, reads as a boolean or a number: `yes`, `010`.
    pub ambiguous: Vec<(Location, String)>,
}

/// Reads one document into a type that denies unknown fields.
///
/// # Errors
/// The error has the line, and the path of the field if there is one.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    from_value(parse(text)?.value, text)
}

/// Reads one document.
///
/// # Errors
/// The error has the line and column of invalid YAML, a duplicate key, a tag, or excessive alias expansion.
pub fn parse(text: &str) -> Result<Parsed, YamlError> {
    let notes = Notes::new(text);
    // Into a value first: deserializing directly would accept a number as a string, and the last of two equal keys.
    let value = Node(&notes)
        .deserialize(serde_yaml::Deserializer::from_str(text))
        .map_err(|error| YamlError::new(&error, text))?;
    let ambiguous = notes
        .ambiguous()
        .into_iter()
        .map(|(offset, word)| (Location::of_offset(text, offset), word))
        .collect();
    Ok(Parsed { value, ambiguous })
}

/// Deserializes a value that was parsed from `text`, which is used only for the positions of errors.
///
/// # Errors
/// The error has the line, and the path of the field if there is one.
pub fn from_value<T: DeserializeOwned>(value: Value, text: &str) -> Result<T, YamlError> {
    try_read(value).map_err(|mistake| mistake.at(text, &[]))
}

/// Why a value is not of a type.
pub(super) struct Mistake {
    /// The field, or what lacks one.
    pub(super) path: Vec<String>,
    reason: String,
}

/// Deserializes a value.
pub(super) fn try_read<T: DeserializeOwned>(value: Value) -> Result<T, Mistake> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let mut path: Vec<String> = error
            .path()
            .iter()
            .filter_map(|segment| match segment {
                Segment::Seq { index } => Some(index.to_string()),
                Segment::Map { key } => Some(key.clone()),
                Segment::Enum { .. } | Segment::Unknown => None,
            })
            .collect();
        let reason = in_words(error.inner().to_string());
        // The reported path of an unknown field is either its own or that of its parent.
        if let Some(unknown) = quoted_after(&reason, "unknown field `")
            && path.last().is_none_or(|last| last != unknown)
        {
            path.push(unknown.to_owned());
        }
        Mistake { path, reason }
    })
}

/// A message with words in place of the types of the program.
fn in_words(mut message: String) -> String {
    let words = [
        ("expected u16", "expected a whole number, 0 to 65535"),
        ("expected u32", "expected a whole number, 0 to 4294967295"),
        ("expected u64", "expected a whole number, not less than 0"),
        ("expected i64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected a Value::Tagged enum", "expected a word"),
        ("expected a sequence", "expected a list"),
    ];
    let known = words.iter().find(|(end, _)| message.ends_with(end));
    if let Some((end, words)) = known {
        message.truncate(message.len() - end.len());
        message.push_str(words);
    }
    message
}

/// The word in backticks that a message begins with, after `prefix`.
fn quoted_after<'a>(message: &'a str, prefix: &str) -> Option<&'a str> {
    message.strip_prefix(prefix)?.split('`').next()
}

impl Mistake {
    /// The field that is missing.
    pub(super) fn missing(&self) -> Option<&str> {
        quoted_after(&self.reason, "missing field `")
    }

    /// The error, in the part of a text at the path `within`.
    pub(super) fn at(&self, text: &str, within: &[String]) -> YamlError {
        let place = Location::of(text, &[within, self.path.as_slice()].concat());
        let reason = format!("{}{}", self.reason, self.hint());
        YamlError {
            line: place.line,
            column: place.column,
            message: match self.path.join(".") {
                path if path.is_empty() => reason,
                path => format!("{path}: {reason}"),
            },
        }
    }

    /// The allowed word that is nearest to an unknown one: the reason lists those that are allowed in backticks.
    fn hint(&self) -> String {
        let unknown = ["unknown field `", "unknown variant `"];
        let mut unknown = unknown.iter();
        let word = unknown.find_map(|prefix| quoted_after(&self.reason, prefix));
        let allowed = self.reason.split('`').skip(3).step_by(2);
        let near = word.and_then(|word| nearest(word, allowed));
        near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
    }
}

/// Writes a value as one document.
///
/// # Errors
/// If it contains values that YAML cannot represent, such as a map with keys that are not strings.
pub fn to_string<T: Serialize>(value: &T) -> Result<String, YamlError> {
    serde_yaml::to_string(value).map_err(|error| YamlError::new(&error, ""))
}

impl YamlError {
    fn new(error: &serde_yaml::Error, text: &str) -> Self {
        let (line, column) = error
            .location()
            .map_or((1, 1), |location| (location.line(), location.column()));
        let mut message = error.to_string();
        // The position is separated from the message, in the same way for all errors.
        if let Some(end) = message.find(" at line ") {
            message.truncate(end);
        }
        let content = text.lines().nth(line - 1).unwrap_or_default();
        let indentation = content.len() - content.trim_start().len();
        if content
            .get(..indentation)
            .is_some_and(|blank| blank.contains('\t'))
        {
            message.push_str(": this line is indented with a tab, use spaces");
        }
        // Of an alias, as `* * * * *` looks.
        if message.contains("alphabetic or numeric character") {
            message.push_str(": quote a value that begins with * or &");
        }
        Self {
            line,
            column,
            message,
        }
    }
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            column,
            message,
        } = self;
        write!(f, "line {line} column {column}: {message}")
    }
}

impl std::error::Error for YamlError {}
