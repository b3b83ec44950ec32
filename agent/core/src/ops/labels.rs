//! The labels that the operations keep beside an image, and their typed form.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::volume::Source;
use crate::{
    Error, Kind, Result,
    backend::{Image, Labels},
    host::{Access, FileSystem},
    types::{AccessMode, Capability, Handle, Map, NodeName},
};

/// The CSI name.
pub(super) const NAME: &str = "name";
/// When it was made, in nanoseconds since 1970.
pub(super) const CREATED: &str = "created";
/// The parameters that it was made with, as JSON.
pub(super) const PARAMETERS: &str = "parameters";
/// What it is a copy of: `volume:<handle>` or `snapshot:<handle>`.
pub(super) const SOURCE: &str = "source";
/// The volume that a snapshot shows.
pub(super) const SNAPSHOT_OF: &str = "of";
/// The file system that it has, or shall get.
pub(super) const FILE_SYSTEM: &str = "fs";
/// `pending` from birth until it is formatted or handed out raw, `running` while it is formatted.
/// Only with this label may a volume be formatted: it says that nobody has ever used it.
pub(super) const FORMAT: &str = "format";
/// `copied` on a copy whose file system still has the identity of its source.
pub(super) const IDENTITY: &str = "identity";
/// To whom the controller has published it, as JSON.
pub(super) const PUBLISHED: &str = "published";
/// The volumes of a group: `<class>/<key>`, with `:` between them. The node is the group's own.
pub(super) const MEMBERS: &str = "members";
/// The group snapshot that a snapshot is a member of: `<class>/<key>`.
pub(super) const GROUP: &str = "group";
/// `incomplete` on a group snapshot until all of it is there, `undecided` while it is kept for a rollback that may not begin,
/// `deleting` while it is deleted.
pub(super) const STATE: &str = "state";
/// The name of the rollback to a group snapshot that runs.
pub(super) const ROLLBACK: &str = "rollback";
/// The name of the last rollback to a group snapshot that ended.
pub(super) const LAST_ROLLBACK: &str = "last-rollback";
/// The group snapshot that a volume is being rolled back to, or is about to be: `<class>/<key>`.
pub(super) const ROLLBACK_TO: &str = "rollback-to";
/// On what is kept for a rollback, the group snapshot that it was to: `<class>/<key>`.
pub(super) const BEFORE: &str = "before";
/// `true` while it may not be deleted.
pub(super) const PROTECTED: &str = "protected";
/// What the labels of a user begin with.
pub(super) const USER: &str = "label.";

/// The labels of a volume that say what its bytes are, and that a snapshot of it has, too.
pub(super) const OF_BYTES: [&str; 3] = [FILE_SYSTEM, FORMAT, IDENTITY];

/// A publication by the controller (CSI, `ControllerPublishVolume`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Publication {
    pub(super) node: NodeName,
    pub(super) read_only: bool,
    pub(super) block: bool,
    pub(super) mode: String,
}

impl Publication {
    /// What publishing with `capability` and `access` on `node` records.
    pub(super) fn new(node: &NodeName, capability: &Capability, access: Access) -> Self {
        Self {
            node: node.clone(),
            read_only: access == Access::ReadOnly,
            block: capability.is_block(),
            mode: capability.mode.word().to_owned(),
        }
    }

    /// Whether a node may use the volume as `mode`.
    pub(super) fn allows(&self, mode: AccessMode) -> bool {
        self.mode == mode.word()
    }
}

/// Reads what the operations wrote.
pub(super) trait Read {
    /// One label.
    fn label(&self, key: &str) -> Option<&str>;

    /// When it was made.
    fn created(&self) -> SystemTime {
        let nanoseconds = self.label(CREATED).and_then(|text| text.parse().ok());
        SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds.unwrap_or(0))
    }

    /// The parameters that it was made with.
    fn parameters(&self) -> Map {
        self.label(PARAMETERS)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// What it is a copy of.
    fn source(&self) -> Option<Source> {
        let (kind, handle) = self.label(SOURCE)?.split_once(':')?;
        let handle = Handle::parse(handle)?;
        match kind {
            "volume" => Some(Source::Volume(handle.into())),
            "snapshot" => Some(Source::Snapshot(handle.into())),
            _ => None,
        }
    }

    /// The file system that it has, or shall get.
    fn file_system(&self) -> Option<FileSystem> {
        self.label(FILE_SYSTEM)?.parse().ok()
    }

    /// Whether it was made for a raw user alone. What a copy of such a volume holds nobody knows before it is looked at.
    fn is_raw_alone(&self) -> bool {
        self.file_system().is_none() && self.label(SOURCE).is_none()
    }

    /// Why it cannot be used in all these ways, if it cannot.
    fn lacks(&self, capabilities: &[Capability]) -> Option<String> {
        let is_mounted = capabilities.iter().any(|capability| !capability.is_block());
        if is_mounted && self.is_raw_alone() {
            return Some("it was created as a raw block device, without a file system".to_owned());
        }
        let has = self.file_system()?;
        let mut wanted = capabilities.iter().filter_map(Capability::file_system);
        let other = wanted.find(|wanted| *wanted != has)?;
        Some(format!("its file system is {has}, not {other}"))
    }

    /// Whether it was made by us and never formatted to the end.
    fn is_unformatted(&self) -> bool {
        self.label(FORMAT).is_some()
    }

    /// Whether a format of it was begun, and perhaps interrupted.
    fn is_format_running(&self) -> bool {
        self.label(FORMAT) == Some("running")
    }

    /// To whom the controller has published it.
    ///
    /// # Errors
    /// [`Kind::Precondition`] for a record that cannot be read. It does not count as none: what is not published may be
    /// deleted.
    fn publication(&self) -> Result<Option<Publication>> {
        let Some(text) = self.label(PUBLISHED) else {
            return Ok(None);
        };
        serde_json::from_str(text).map(Some).map_err(|error| {
            Error::new(
                Kind::Precondition,
                format!(
                    "the label {PUBLISHED} cannot be read ({text:?}); unpublish the volume from its node to clear it"
                ),
            )
            .because(error)
        })
    }

    /// Whether the controller has published it.
    fn is_published(&self) -> bool {
        self.label(PUBLISHED).is_some()
    }

    /// Whether it may not be deleted.
    fn is_protected(&self) -> bool {
        self.label(PROTECTED) == Some("true")
    }
}

impl Read for Labels {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl Read for Image {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.label(key)
    }
}

/// The label of the present moment.
pub(super) fn now() -> String {
    time(SystemTime::now())
}

/// The label of a moment.
pub(super) fn time(moment: SystemTime) -> String {
    moment
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos()
        .to_string()
}

/// A value as a label's text.
pub(super) fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::new(Kind::Bug, "could not serialize a label").because(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are on the disks of hosts, and change no more.
    #[test]
    fn the_keys_are_these() {
        assert_eq!(
            [
                NAME,
                CREATED,
                PARAMETERS,
                SOURCE,
                SNAPSHOT_OF,
                FILE_SYSTEM,
                FORMAT,
                IDENTITY,
                PUBLISHED,
                MEMBERS,
                GROUP,
                STATE,
                ROLLBACK,
                LAST_ROLLBACK,
                ROLLBACK_TO,
                BEFORE,
                PROTECTED,
                USER,
            ],
            [
                "name",
                "created",
                "parameters",
                "source",
                "of",
                "fs",
                "format",
                "identity",
                "published",
                "members",
                "group",
                "state",
                "rollback",
                "last-rollback",
                "rollback-to",
                "before",
                "protected",
                "label.",
            ]
        );
    }
}
