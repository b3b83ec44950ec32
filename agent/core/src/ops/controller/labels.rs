//! The labels that the operations store with an image, and their typed form.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::ops::volume::Source;
use crate::{
    Error, Kind, Result,
    backend::{Image, Labels},
    host::{Access, FileSystem},
    types::{AccessMode, Capability, Handle, Map, NodeName},
};

/// The CSI name.
pub(crate) const NAME: &str = "name";
/// Creation time, in nanoseconds since 1970.
pub(crate) const CREATED: &str = "created";
/// The parameters of the create call, as JSON.
pub(crate) const PARAMETERS: &str = "parameters";
/// The mutable parameters of the create call, if there were any, as JSON: a later call may have changed the labels.
pub(crate) const MUTABLE: &str = "mutable";
/// Where it was adopted: `GROUP/NAME` of a logical volume, or the path of an image file.
pub(crate) const ADOPTED: &str = "adopted";
/// The source of a copy: `volume:<handle>` or `snapshot:<handle>`.
pub(crate) const SOURCE: &str = "source";
/// The source volume of a snapshot.
pub(crate) const SNAPSHOT_OF: &str = "of";
/// The file system that the image has or will be formatted with.
pub(crate) const FILE_SYSTEM: &str = "fs";
/// `pending` from creation until the volume is formatted or staged raw, `running` while it is being formatted.
/// Only a volume with this label may be formatted: the label shows that the volume was never used.
pub(crate) const FORMAT: &str = "format";
/// `copied` on a copy whose file system still has the identity of its source.
pub(crate) const IDENTITY: &str = "identity";
/// How it was staged last, where the mount table does not show it; see `staging_record.rs`.
pub(crate) const STAGED: &str = "staged";
/// The time at which a volume was moved to the trash, in nanoseconds since 1970.
pub(crate) const TRASHED: &str = "trashed";
/// The key that a volume had in the trash, if it was undeleted.
pub(crate) const UNDELETED: &str = "undeleted";
/// The controller publication, as JSON.
pub(crate) const PUBLISHED: &str = "published";
/// The volumes of a group: `<class>/<key>`, separated by `:`. Their node is that of the group.
pub(crate) const MEMBERS: &str = "members";
/// The group snapshot that a snapshot is a member of: `<class>/<key>`.
pub(crate) const GROUP: &str = "group";
/// `incomplete` on a group snapshot until it is complete, `undecided` on one that keeps the previous contents for a
/// rollback that has not started, `deleting` during its deletion.
pub(crate) const STATE: &str = "state";
/// The name of the in-flight rollback to a group snapshot.
pub(crate) const ROLLBACK: &str = "rollback";
/// The name of the last completed rollback to a group snapshot.
pub(crate) const LAST_ROLLBACK: &str = "last-rollback";
/// On a volume that is prepared for or in a rollback, the target group snapshot: `<class>/<key>`.
pub(crate) const ROLLBACK_TO: &str = "rollback-to";
/// On the group snapshot that keeps the previous contents, the target of the rollback: `<class>/<key>`.
pub(crate) const BEFORE: &str = "before";
/// `true` while deletion is forbidden.
pub(crate) const PROTECTED: &str = "protected";
/// Reads per second, at most.
pub(crate) const READ_IOPS: &str = "readIops";
/// Writes per second, at most.
pub(crate) const WRITE_IOPS: &str = "writeIops";
/// Bytes read per second, at most.
pub(crate) const READ_BYTES: &str = "readBytesPerSecond";
/// Bytes written per second, at most.
pub(crate) const WRITE_BYTES: &str = "writeBytesPerSecond";
/// The limits of a volume.
pub(crate) const LIMITS: [&str; 4] = [READ_IOPS, WRITE_IOPS, READ_BYTES, WRITE_BYTES];
/// Prefix of user-defined labels.
pub(crate) const USER: &str = "label.";

/// The key of the publish context for the access that the controller permits.
const READ_ONLY: &str = "drumlin.dev/readonly";

/// The labels that describe the contents of a volume; a snapshot inherits them.
pub(crate) const OF_BYTES: [&str; 3] = [FILE_SYSTEM, FORMAT, IDENTITY];

/// A publication by the controller (CSI, `ControllerPublishVolume`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Publication {
    pub(crate) node: NodeName,
    pub(crate) read_only: bool,
    pub(crate) block: bool,
    pub(crate) mode: String,
}

impl Publication {
    /// The record of a publication with `capability` and `access` to `node`.
    pub(crate) fn new(node: &NodeName, capability: &Capability, access: Access) -> Self {
        Self {
            node: node.clone(),
            read_only: access == Access::ReadOnly,
            block: capability.is_block(),
            mode: capability.mode.word().to_owned(),
        }
    }

    /// The publish context: informative, as this record is authoritative.
    pub(crate) fn context(&self) -> Map {
        Map::from([(READ_ONLY.to_owned(), self.read_only.to_string())])
    }

    /// Returns true unless a publish context is that of another publication.
    pub(crate) fn is_told_by(&self, context: &Map) -> bool {
        context
            .get(READ_ONLY)
            .is_none_or(|told| *told == self.read_only.to_string())
    }

    /// Returns true if a node may use the volume with access mode `mode`.
    pub(crate) fn allows(&self, mode: AccessMode) -> bool {
        self.mode == mode.word()
    }
}

/// Typed access to the labels.
pub(crate) trait Read {
    /// The value of one label.
    fn label(&self, key: &str) -> Option<&str>;

    /// Creation time.
    fn created(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.recorded_time().unwrap_or(0))
    }

    /// Creation time in nanoseconds since 1970, unless its record is lost.
    fn recorded_time(&self) -> Option<u64> {
        self.label(CREATED)?.parse().ok()
    }

    /// The parameters of the create call.
    fn parameters(&self) -> Map {
        self.label(PARAMETERS)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// The mutable parameters of the create call.
    fn mutable(&self) -> Map {
        self.label(MUTABLE)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// The source of a copy.
    fn source(&self) -> Option<Source> {
        let (kind, handle) = self.label(SOURCE)?.split_once(':')?;
        let handle = Handle::parse(handle)?;
        match kind {
            "volume" => Some(Source::Volume(handle.into())),
            "snapshot" => Some(Source::Snapshot(handle.into())),
            _ => None,
        }
    }

    /// The file system that the image has or will be formatted with.
    fn file_system(&self) -> Option<FileSystem> {
        self.label(FILE_SYSTEM)?.parse().ok()
    }

    /// Returns true if it was created for raw use only. The contents of a copy of such a volume are unknown until they
    /// are probed.
    fn is_raw_alone(&self) -> bool {
        self.file_system().is_none() && self.label(SOURCE).is_none()
    }

    /// The reason why it does not support all of these capabilities, if any.
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

    /// Returns true if it was created by the agent and never formatted completely.
    fn is_unformatted(&self) -> bool {
        self.label(FORMAT).is_some()
    }

    /// Returns true if formatting was started and possibly interrupted.
    fn is_format_running(&self) -> bool {
        self.label(FORMAT) == Some("running")
    }

    /// Returns true if it holds no data: created blank for a file system, and never formatted.
    fn is_blank(&self) -> bool {
        self.is_unformatted() && !self.is_format_running()
    }

    /// The controller publication, if any.
    ///
    /// # Errors
    /// [`Kind::Precondition`] for a record that cannot be read. It is not treated as unpublished, because an
    /// unpublished volume may be deleted.
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

    /// Returns true if the controller has published it.
    fn is_published(&self) -> bool {
        self.label(PUBLISHED).is_some()
    }

    /// Returns true if deletion is forbidden.
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

/// The label value for the current time.
pub(crate) fn now() -> String {
    time(SystemTime::now())
}

/// The label value for a time.
pub(crate) fn time(moment: SystemTime) -> String {
    moment
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos()
        .to_string()
}

/// Serializes a value to the text of a label.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String> {
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
                MUTABLE,
                ADOPTED,
                SOURCE,
                SNAPSHOT_OF,
                FILE_SYSTEM,
                FORMAT,
                IDENTITY,
                STAGED,
                TRASHED,
                UNDELETED,
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
                "mutable",
                "adopted",
                "source",
                "of",
                "fs",
                "format",
                "identity",
                "staged",
                "trashed",
                "undeleted",
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
