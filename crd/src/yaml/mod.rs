//! The one place of the project that reads and writes YAML.
//!
//! Everything is read strictly: an unknown field, a key that stands twice, a tag and a value of another type are errors
//! with line and column. Words such as `yes`, `on` and `010` stay text; who wants them refused asks for them.

mod location;
mod strict_value;

use std::fmt;

use serde::{
    Serialize,
    de::{DeserializeOwned, DeserializeSeed},
};
use serde_path_to_error::Segment;
pub use serde_yaml::Value;

pub use location::Location;
use strict_value::{Node, Notes};

/// Why a YAML text cannot be read: what, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlError {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// What is wrong, with the field's path where it is known.
    pub message: String,
}

/// One document, and what is to be said about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The document; null where there is none.
    pub value: Value,
    /// Words without quotes that YAML 1.1, which kubectl reads, takes for a boolean or a number: `yes`, `010`.
    pub ambiguous: Vec<(Location, String)>,
}

/// Reads one document into a type that denies unknown fields.
///
/// # Errors
/// With the line, and the path of the field where there is one.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    from_value(parse(text)?.value, text)
}

/// Reads one document.
///
/// # Errors
/// With the line and column at which it is no YAML, or has a key twice, a tag, or aliases that multiply.
pub fn parse(text: &str) -> Result<Parsed, YamlError> {
    let notes = Notes::new(text);
    // Into a value first: reading straight into a type would take a number for a text, and the last of two equal keys.
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

/// Reads a value that came from `text`, which is looked at for the places of errors only.
///
/// # Errors
/// With the line, and the path of the field where there is one.
pub fn from_value<T: DeserializeOwned>(value: Value, text: &str) -> Result<T, YamlError> {
    from_part(value, text, &[])
}

/// Reads a value that stands in `text` at the path `within`.
///
/// # Errors
/// As [`from_value`]; the path of a field begins where the value does.
pub fn from_part<T: DeserializeOwned>(
    value: Value,
    text: &str,
    within: &[String],
) -> Result<T, YamlError> {
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
        let reason = error.inner().to_string();
        // The path of an unknown field is sometimes its own, and sometimes that of what holds it.
        let unknown = reason
            .strip_prefix("unknown field `")
            .and_then(|rest| rest.split('`').next());
        if let Some(unknown) = unknown
            && path.last().is_none_or(|last| last != unknown)
        {
            path.push(unknown.to_owned());
        }
        let place = Location::of(text, &[within, path.as_slice()].concat());
        YamlError {
            line: place.line,
            column: place.column,
            message: match path.join(".") {
                path if path.is_empty() => reason,
                path => format!("{path}: {reason}"),
            },
        }
    })
}

/// Writes a value as one document.
///
/// # Errors
/// When it holds what YAML cannot, such as a map whose keys are no texts.
pub fn to_string<T: Serialize>(value: &T) -> Result<String, YamlError> {
    serde_yaml::to_string(value).map_err(|error| YamlError::new(&error, ""))
}

impl YamlError {
    fn new(error: &serde_yaml::Error, text: &str) -> Self {
        let (line, column) = error
            .location()
            .map_or((1, 1), |location| (location.line(), location.column()));
        let mut message = error.to_string();
        // The place is told apart from the message, in one way for all errors.
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

#[cfg(test)]
mod tests;
