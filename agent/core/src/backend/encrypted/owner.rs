//! Whom a key is asked for: a program can give each namespace, or each volume, its own.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::backend::Image;

/// A volume and its tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyOwner {
    /// The key of the image's id.
    pub(super) volume: String,
    /// The namespace that it was created for, as far as it is known.
    #[serde(flatten)]
    pub(super) tenant: Tenant,
}

/// Whose volume it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// The name of its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The UID of its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl KeyOwner {
    /// The owner that a new key of an image is asked for.
    pub(super) fn of(image: &Image, tenant: Tenant) -> Self {
        Self {
            volume: image.id.key.to_string(),
            tenant,
        }
    }

    /// Parses the text of a label.
    pub(super) fn parse(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

impl fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It has string keys and values only, and cannot fail.
        f.write_str(&serde_json::to_string(self).unwrap_or_default())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_ref().or(self.uid.as_ref()) {
            Some(name) => write!(f, "namespace {name}"),
            None => f.write_str("no namespace"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_back_as_it_was_written() {
        for (namespace, shown) in [(Some("db"), "namespace db"), (None, "no namespace")] {
            let tenant = Tenant {
                namespace: namespace.map(str::to_owned),
                uid: None,
            };
            assert_eq!(tenant.to_string(), shown);
            let volume = "v".to_owned();
            let owner = KeyOwner { volume, tenant };
            assert_eq!(KeyOwner::parse(&owner.to_string()).unwrap(), owner);
        }
    }
}
