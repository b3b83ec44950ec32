//! Names: of volumes and snapshots (any Unicode), of nodes, of classes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The longest name of a volume or snapshot, in bytes (CSI, "Size Limits").
const NAME_BYTES: usize = 128;

/// The name that a caller gives a volume or snapshot: 1–128 bytes of Unicode without control characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Validates a name received in `field`.
    ///
    /// # Errors
    /// Invalid, naming `field`, if it is empty, too long or has a control character.
    pub fn parse(field: &str, text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::invalid(format!("{field} is missing")));
        }
        if text.len() > NAME_BYTES {
            return Err(Error::invalid(format!(
                "{field} has {} bytes; at most {NAME_BYTES} are allowed",
                text.len()
            )));
        }
        if text.chars().any(char::is_control) {
            return Err(Error::invalid(format!(
                "{field} has a control character: {text:?}"
            )));
        }
        Ok(Self(text.to_owned()))
    }

    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a node: the `node_id`, the topology segment and a manifest's `nodeName` alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

/// The name of a device class: a DNS label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClassName(String);

fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

impl FromStr for NodeName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // A topology value may have at most 63 bytes (CSI, Topology), and the name is part of every id, before a `/`.
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        if text.len() > 63
            || !text.bytes().all(allowed)
            || !edge(text.bytes().next())
            || !edge(text.bytes().last())
        {
            return Err(Error::invalid(format!(
                "node name {text:?} must be 1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for ClassName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if !is_dns_label(text) {
            return Err(Error::invalid(format!(
                "class name {text:?} must be a DNS label (1 to 63 lower-case letters, digits and '-')"
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

macro_rules! text {
    ($name:ident) => {
        impl $name {
            /// The name's text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
    };
}

text!(NodeName);
text!(ClassName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_any_unicode_but_control_characters() {
        for good in ["a", "größe/..", "日本", &"x".repeat(128), "a b", "-"] {
            assert_eq!(Name::parse("name", good).unwrap().as_str(), good);
        }
        for bad in ["", "a\nb", "a\0", "\u{85}", &"x".repeat(129)] {
            let error = Name::parse("name", bad).unwrap_err();
            assert!(error.to_string().starts_with("name "), "{error}");
        }
    }

    #[test]
    fn node_and_class_names_cannot_break_an_id() {
        for bad in ["", "a/b", "a b", "-a", "a\n", &"n".repeat(64)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?}");
            assert!(bad.parse::<ClassName>().is_err(), "{bad:?}");
        }
        assert!("Node-1.example".parse::<NodeName>().is_ok());
        assert!("Thin".parse::<ClassName>().is_err());
        assert!("thin-1".parse::<ClassName>().is_ok());
    }
}
