//! Handles: `<node>/<class>/<key>`, where the key is derived from the name only.

use std::fmt;

use uuid::Uuid;

use super::{ClassName, Name, NodeName};

/// Maximum length of a handle, in bytes (CSI, "Size Limits").
pub(crate) const HANDLE_BYTES: usize = 128;

/// Kind of an image. Every object with a handle is an image; groups are images without data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImageKind {
    /// Data that a workload writes.
    Volume,
    /// Point-in-time copy of a volume; never written.
    Snapshot,
    /// A group of volumes: labels without data.
    Group,
    /// Snapshots of one point in time: labels without data.
    GroupSnapshot,
    /// A deleted volume that can be undeleted. No caller of CSI sees it.
    Trash,
}

impl ImageKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Volume,
        Self::Snapshot,
        Self::Group,
        Self::GroupSnapshot,
        Self::Trash,
    ];
    /// The kinds that lists show.
    pub const LISTED: [Self; 4] = [
        Self::Volume,
        Self::Snapshot,
        Self::Group,
        Self::GroupSnapshot,
    ];

    /// The human-readable name: `volume`, `snapshot`, `group`, `group snapshot` or `trash`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::Group => "group",
            Self::GroupSnapshot => "group snapshot",
            Self::Trash => "trash",
        }
    }

    /// Returns true if images of this kind have data, not only labels.
    pub fn has_bytes(self) -> bool {
        matches!(self, Self::Volume | Self::Snapshot | Self::Trash)
    }

    /// The UUID namespace of its keys, so that a volume, a snapshot and a group of the same name never have the same
    /// key.
    fn namespace(self) -> Uuid {
        match self {
            Self::Volume => Uuid::from_u128(0x1f5c_3b1a_9d1e_5c53_8a52_6d0b_4b5f_7a01),
            Self::Snapshot => Uuid::from_u128(0x1f5c_3b1a_9d1e_5c53_8a52_6d0b_4b5f_7a02),
            Self::Group => Uuid::from_u128(0x1f5c_3b1a_9d1e_5c53_8a52_6d0b_4b5f_7a03),
            Self::GroupSnapshot => Uuid::from_u128(0x1f5c_3b1a_9d1e_5c53_8a52_6d0b_4b5f_7a04),
            Self::Trash => Uuid::from_u128(0x1f5c_3b1a_9d1e_5c53_8a52_6d0b_4b5f_7a05),
        }
    }
}

/// The key of an image: the version-5 UUID of its name, so that a repeated create finds it without an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Uuid);

impl Key {
    /// A key that no name maps to.
    pub(crate) const NIL: Self = Self(Uuid::nil());

    /// The key of the image with name `name`.
    pub fn of(kind: ImageKind, name: &Name) -> Self {
        Self(Uuid::new_v5(&kind.namespace(), name.as_str().as_bytes()))
    }

    /// The key of the member `name` of the image with this key.
    #[must_use]
    pub fn within(&self, name: &str) -> Self {
        Self(Uuid::new_v5(&self.0, name.as_bytes()))
    }

    /// Parses a key in its canonical form: 36 lower-case characters with hyphens.
    pub fn parse(text: &str) -> Option<Self> {
        let key = Self(Uuid::try_parse(text).ok()?);
        (key.to_string() == text).then_some(key)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// Identity of an image within its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId {
    /// The kind of the image.
    pub kind: ImageKind,
    /// Its key.
    pub key: Key,
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.word(), self.key)
    }
}

/// The `volume_id` or `snapshot_id` that callers keep: `<node>/<class>/<key>`, at most 128 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// The node that has the image.
    pub node: NodeName,
    /// The class that it is in.
    pub class: ClassName,
    /// Its key within the class.
    pub key: Key,
}

impl Handle {
    /// Parses a handle; none if it does not have the form of a handle.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > HANDLE_BYTES {
            return None;
        }
        let mut parts = text.split('/');
        let handle = Self {
            node: parts.next()?.parse().ok()?,
            class: parts.next()?.parse().ok()?,
            key: Key::parse(parts.next()?)?,
        };
        parts.next().is_none().then_some(handle)
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.node, self.class, self.key)
    }
}

/// An id as sent by a caller. One without the form of a handle is unknown, not invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    text: String,
    handle: Option<Handle>,
}

impl Reference {
    /// Parses an id received in `field`.
    ///
    /// # Errors
    /// Invalid, naming `field`, if it is empty.
    pub fn parse(field: &str, text: &str) -> crate::Result<Self> {
        if text.is_empty() {
            return Err(crate::Error::invalid(format!("{field} is missing")));
        }
        Ok(Self {
            handle: Handle::parse(text),
            text: text.to_owned(),
        })
    }

    /// The handle, if the id has the form of one.
    pub fn handle(&self) -> Option<&Handle> {
        self.handle.as_ref()
    }
}

impl From<Handle> for Reference {
    fn from(handle: Handle) -> Self {
        Self {
            text: handle.to_string(),
            handle: Some(handle),
        }
    }
}

impl fmt::Display for Reference {
    /// The id, truncated for messages, with non-printable characters escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.text.chars().take(HANDLE_BYTES) {
            match character {
                ' '..='~' => write!(f, "{character}")?,
                other => write!(f, "{}", other.escape_unicode())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_back_as_it_was_given_out() {
        let handle = Handle {
            node: "node-a".parse().unwrap(),
            class: "default".parse().unwrap(),
            key: Key::of(ImageKind::Volume, &Name::parse("name", "größe").unwrap()),
        };
        assert_eq!(Handle::parse(&handle.to_string()), Some(handle));
    }

    #[test]
    fn the_key_of_a_name_never_changes() {
        let name = Name::parse("name", "pvc-1").unwrap();
        let volume = Key::of(ImageKind::Volume, &name);
        assert_eq!(volume.to_string(), "ab625c53-8e29-5e76-8c19-988617765e4e");
        assert_ne!(volume, Key::of(ImageKind::Snapshot, &name));
    }

    #[test]
    fn what_has_not_our_form_is_no_handle() {
        let key = "00000000-0000-5000-8000-00000000000a";
        for bad in [
            "fake-vol-id".to_owned(),
            String::new(),
            format!("a/b/{key}/"),
            format!("a/../{key}"),
            format!("/b/{key}"),
            format!("a/b/{}", key.to_uppercase()),
            format!("a/b/{{{key}}}"),
            format!("a\n/b/{key}"),
        ] {
            assert_eq!(Handle::parse(&bad), None, "{bad:?}");
        }
        assert!(Handle::parse(&format!("a/b/{key}")).is_some());
    }
}
