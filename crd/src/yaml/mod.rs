//! The only place of the project that reads and writes YAML.
//!
//! Parsing is strict: an unknown field, a duplicate key, a tag and a value of another type are errors with line and
//! column. Words such as `yes`, `on` and `010` are strings; callers can ask for them in order to refuse them.

mod document;
mod leniently;
mod location;
mod nearest;
mod strict_value;
#[cfg(test)]
mod tests;

pub use document::{Parsed, YamlError, from_str, from_value, parse, to_string};
pub use leniently::{Leniently, leniently};
pub use location::Location;
pub use nearest::nearest;
pub use serde_yaml::Value;
pub(crate) use strict_value::is_ambiguous;
