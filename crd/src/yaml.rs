//! The one place of the project that reads YAML.
//!
//! Everything is read strictly: an unknown field, a key that stands twice and a value of another type are errors
//! with a line. Words such as `yes`, `on` and `010` stay text where text is wanted.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
pub use serde_yaml::Value;

/// Why a YAML text cannot be read: what, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlError {
    /// The line, from 1; 0 when it is not known.
    pub line: usize,
    /// The column, from 1; 0 when it is not known.
    pub column: usize,
    /// What is wrong, with the field's path where it is known.
    pub message: String,
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return f.write_str(&self.message);
        }
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for YamlError {}

impl From<serde_yaml::Error> for YamlError {
    fn from(error: serde_yaml::Error) -> Self {
        let (line, column) = error
            .location()
            .map_or((0, 0), |location| (location.line(), location.column()));
        let mut message = error.to_string();
        // The place is told apart from the message, in one way for all errors.
        if let Some(end) = message.rfind(" at line ") {
            message.truncate(end);
        }
        Self {
            line,
            column,
            message,
        }
    }
}

/// Reads one document into a type that denies unknown fields.
///
/// # Errors
/// With the line, and the path of the field where there is one.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // Into a value first: only there is a key that stands twice in a free map an error, and a number no text.
    let value: Value = serde_yaml::from_str(text)?;
    from_value(value, text)
}

/// Reads a value that came from `text`, which is looked at for the lines of errors only.
///
/// # Errors
/// With the line, and the path of the field where there is one.
pub fn from_value<T: DeserializeOwned>(value: Value, text: &str) -> Result<T, YamlError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let segments: Vec<String> = error
            .path()
            .iter()
            .filter_map(|segment| match segment {
                Segment::Seq { index } => Some(index.to_string()),
                Segment::Map { key } => Some(key.clone()),
                Segment::Enum { .. } | Segment::Unknown => None,
            })
            .collect();
        let reason = error.inner().to_string();
        // The path of an unknown field is that of what holds it; the message names the field first of all.
        let unknown = reason
            .strip_prefix("unknown field `")
            .and_then(|rest| rest.split('`').next());
        let mut place = segments.clone();
        place.extend(unknown.map(str::to_owned));
        YamlError {
            line: line_of(text, &place),
            column: 0,
            message: match segments.join(".") {
                path if path.is_empty() => reason,
                path => format!("{path}: {reason}"),
            },
        }
    })
}

/// The line, from 1, on which the field with this path stands; the nearest one above it that can be found, or 1.
///
/// Looks at indentation, as people write manifests; in other styles it may find only what holds the field.
pub fn line_of(text: &str, path: &[String]) -> usize {
    let lines: Vec<Line<'_>> = text
        .lines()
        .enumerate()
        .filter_map(Line::read)
        .flat_map(Line::split)
        .collect();
    let mut block = lines.as_slice();
    let mut found = lines.first().map_or(1, |line| line.number);
    for segment in path {
        let Some(indent) = block.first().map(|line| line.indent) else {
            return found;
        };
        let is_item = segment.parse::<usize>().ok();
        let mut items = 0;
        let Some(at) = block.iter().position(|line| {
            if line.indent != indent {
                return false;
            }
            match is_item {
                Some(index) if line.is_item => {
                    items += 1;
                    items == index + 1
                }
                _ => !line.is_item && line.has_key(segment),
            }
        }) else {
            return found;
        };
        let (head, rest) = block.split_at(at);
        let Some((line, after)) = rest.split_first() else {
            return head.first().map_or(found, |line| line.number);
        };
        found = line.number;
        let end = after
            .iter()
            .position(|next| {
                next.indent < indent || (next.indent == indent && (line.is_item || !next.is_item))
            })
            .unwrap_or(after.len());
        block = after.get(..end).unwrap_or_default();
    }
    found
}

/// One line, or one half of a line that begins a list's item and has its first key too.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    number: usize,
    indent: usize,
    is_item: bool,
    content: &'a str,
}

impl<'a> Line<'a> {
    fn read((index, text): (usize, &'a str)) -> Option<Self> {
        let content = text.trim_start_matches(' ');
        if content.is_empty() || content.starts_with('#') {
            return None;
        }
        Some(Self {
            number: index + 1,
            indent: text.len() - content.len(),
            is_item: content == "-" || content.starts_with("- "),
            content,
        })
    }

    /// A line `- key: value` is an item, and within it a key.
    fn split(self) -> impl Iterator<Item = Self> {
        let inner = self.content.strip_prefix("- ").filter(|_| self.is_item);
        let inner = inner.and_then(|rest| {
            let content = rest.trim_start_matches(' ');
            Self::read((self.number - 1, content)).map(|line| Self {
                indent: self.indent + self.content.len() - content.len(),
                ..line
            })
        });
        std::iter::once(self).chain(inner)
    }

    fn has_key(&self, key: &str) -> bool {
        let content = self.content.trim_start_matches(['"', '\'']);
        content
            .strip_prefix(key)
            .is_some_and(|rest| rest.trim_start_matches(['"', '\'']).starts_with(':'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::{collections::BTreeMap, fmt::Write};

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Thing {
        name: String,
        #[serde(default)]
        parameters: BTreeMap<String, String>,
    }

    fn read(text: &str) -> Result<Thing, YamlError> {
        from_str(text)
    }

    #[test]
    fn an_unknown_field_is_an_error_with_its_line() {
        let error = read("name: a\nnmae: b\n").unwrap_err();
        assert_eq!(error.line, 2);
        assert!(error.message.contains("nmae"), "{error}");
    }

    #[test]
    fn a_key_that_stands_twice_is_an_error_anywhere() {
        assert!(read("name: a\nname: b\n").is_err());
        assert!(read("name: a\nparameters:\n  x: one\n  x: two\n").is_err());
    }

    #[test]
    fn words_stay_words_and_what_is_no_text_is_refused() {
        for word in ["n", "yes", "on", "No", "010x"] {
            assert_eq!(read(&format!("name: {word}\n")).unwrap().name, word);
        }
        for value in ["1", "true", "1.5", "[a]", "{a: b}"] {
            assert!(read(&format!("name: {value}\n")).is_err(), "{value}");
        }
    }

    #[test]
    fn tabs_are_errors_and_a_byte_order_mark_and_crlf_are_fine() {
        assert!(read("name: a\nparameters:\n\tx: y\n").is_err());
        assert_eq!(read("\u{feff}name: a\r\n").unwrap().name, "a");
    }

    #[test]
    fn the_line_of_a_field_is_found_by_its_path() {
        let text = "# head\nspec:\n  a:\n    path: 1\n  mount:\n    # why\n    path: 2\nlist:\n- name: x\n  path: 3\n- name: y\n  \"path\": 4\n";
        let line = |path: &[&str]| {
            line_of(
                text,
                &path
                    .iter()
                    .map(|part| (*part).to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(line(&["spec"]), 2);
        assert_eq!(line(&["spec", "mount", "path"]), 7);
        assert_eq!(line(&["list", "1", "path"]), 12);
        assert_eq!(line(&["list", "1", "name"]), 11);
        assert_eq!(line(&["spec", "nothing"]), 2);
    }

    #[test]
    fn an_alias_bomb_is_stopped() {
        let mut text = String::from("name: a\nparameters: &a0 {x: y}\n");
        text.clear();
        text.push_str("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..12 {
            let alias = format!("*a{},", level - 1).repeat(10);
            writeln!(text, "a{level}: &a{level} [{alias}]").unwrap();
        }
        assert!(from_str::<serde_json::Value>(&text).is_err());
    }
}
