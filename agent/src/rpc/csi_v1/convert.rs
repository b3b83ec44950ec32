//! Converts requests to validated values, and results to messages.
//!
//! Error messages name the field. Ids without the form of a handle are unknown, not invalid.

use std::{collections::BTreeMap, time::SystemTime};

use drumlin_core::{
    Error, Kind, Result,
    host::Access,
    ops::{Condition, GroupSnapshot, PageRequest, Snapshot, Source, Target, Volume},
    types::{
        AbsolutePath, AccessMode, AccessType, Capability, Map, Reference, Requirement, RootPath,
        SizeRange, Topology,
    },
};
use drumlin_proto::{
    MOUNT_ROOT,
    csi::v1::{
        self,
        volume_capability::{AccessType as WireType, access_mode::Mode},
        volume_content_source::Type as WireSource,
    },
};
use tonic::metadata::{Binary, MetadataValue};

/// The prefix of our keys in the contexts of volumes.
const OUR_KEYS: &str = "drumlin.dev/";
/// Maximum number of entries of a list or map in a request; legitimate callers send fewer.
const ENTRIES: usize = 1024;
/// Maximum length of a flag or value, in bytes (CSI, "Size Limits": keys and values of a map together have 4 KiB).
const TEXT_BYTES: usize = 4096;

/// Converts one capability received in `field`.
pub(in crate::rpc) fn capability(
    field: &str,
    capability: Option<&v1::VolumeCapability>,
) -> Result<Capability> {
    let Some(capability) = capability else {
        return Err(Error::invalid(format!("{field} is missing")));
    };
    let access_type = match &capability.access_type {
        None => {
            return Err(Error::invalid(format!(
                "{field}.access_type is missing: set block or mount"
            )));
        }
        Some(WireType::Block(_)) => AccessType::Block,
        Some(WireType::Mount(mount)) => mount_type(field, mount)?,
    };
    let Some(mode) = &capability.access_mode else {
        return Err(Error::invalid(format!("{field}.access_mode is missing")));
    };
    Ok(Capability {
        access_type,
        mode: access_mode(field, mode.mode)?,
    })
}

/// Converts the capability received in `volume_capability`, if any.
pub(super) fn optional_capability(
    given: Option<&v1::VolumeCapability>,
) -> Result<Option<Capability>> {
    let given = given.map(|given| capability("volume_capability", Some(given)));
    given.transpose()
}

/// Checks the context of a volume received in `field`. Ours have none, and orchestrators add keys of their own; a key
/// of ours that no volume has is another driver's or another version's.
pub(in crate::rpc) fn volume_context(field: &str, context: &Map) -> Result<()> {
    let mut ours = context.keys().filter(|key| key.starts_with(OUR_KEYS));
    match ours.find(|key| *key != MOUNT_ROOT) {
        None => Ok(()),
        Some(key) => Err(Error::unsupported(format!(
            "{field}.{key} is not a key of the context of this volume"
        ))),
    }
}

/// Tells what is not supported from what is invalid: the reason, as text.
pub(in crate::rpc) fn supported<T>(converted: Result<T>) -> Result<Result<T, String>> {
    match converted {
        Ok(value) => Ok(Ok(value)),
        Err(error) if error.kind() == Kind::Unsupported => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

fn mount_type(field: &str, mount: &v1::volume_capability::MountVolume) -> Result<AccessType> {
    let file_system = match mount.fs_type.as_str() {
        "" => None,
        name => Some(name.parse().map_err(|error: Error| {
            Error::unsupported(format!("{field}.mount.fs_type: {error}"))
        })?),
    };
    if mount.mount_flags.len() > ENTRIES
        || mount.mount_flags.iter().map(String::len).sum::<usize>() > TEXT_BYTES
    {
        return Err(Error::invalid(format!(
            "{field}.mount.mount_flags is longer than {TEXT_BYTES} bytes"
        )));
    }
    let group = match mount.volume_mount_group.as_str() {
        "" => None,
        // The highest number means "leave unchanged" to the kernel.
        number => Some(
            number
                .parse()
                .ok()
                .filter(|group| *group != u32::MAX)
                .ok_or_else(|| {
                    Error::invalid(format!(
                        "{field}.mount.volume_mount_group must be a numeric group id: {number:?}"
                    ))
                })?,
        ),
    };
    Ok(AccessType::Mount {
        file_system,
        flags: mount.mount_flags.clone(),
        group,
    })
}

fn access_mode(field: &str, mode: i32) -> Result<AccessMode> {
    Ok(match Mode::try_from(mode) {
        Ok(Mode::SingleNodeWriter) => AccessMode::SingleNodeWriter,
        Ok(Mode::SingleNodeReaderOnly) => AccessMode::SingleNodeReaderOnly,
        Ok(Mode::SingleNodeSingleWriter) => AccessMode::SingleNodeSingleWriter,
        Ok(Mode::SingleNodeMultiWriter) => AccessMode::SingleNodeMultiWriter,
        Ok(Mode::MultiNodeReaderOnly) => AccessMode::MultiNodeReaderOnly,
        Ok(Mode::MultiNodeSingleWriter) => AccessMode::MultiNodeSingleWriter,
        Ok(Mode::MultiNodeMultiWriter) => AccessMode::MultiNodeMultiWriter,
        Ok(Mode::Unknown) => {
            return Err(Error::invalid(format!(
                "{field}.access_mode.mode is missing"
            )));
        }
        Err(_) => {
            return Err(Error::invalid(format!(
                "{field}.access_mode.mode {mode} is unknown"
            )));
        }
    })
}

/// Converts the capabilities received in `volume_capabilities`: at least one.
pub(super) fn capabilities(list: &[v1::VolumeCapability]) -> Result<Vec<Capability>> {
    if list.is_empty() {
        return Err(Error::invalid("volume_capabilities is missing"));
    }
    some_capabilities(list)
}

/// Converts the capabilities received in `volume_capabilities`, if any.
pub(super) fn some_capabilities(list: &[v1::VolumeCapability]) -> Result<Vec<Capability>> {
    check_entries("volume_capabilities", list.len())?;
    list.iter()
        .enumerate()
        .map(|(index, one)| capability(&format!("volume_capabilities[{index}]"), Some(one)))
        .collect()
}

/// Refuses a list with too many entries.
pub(in crate::rpc) fn check_entries(field: &str, entries: usize) -> Result<()> {
    if entries > ENTRIES {
        return Err(Error::invalid(format!(
            "{field} has more than {ENTRIES} entries"
        )));
    }
    Ok(())
}

/// Converts a size range; none for any size.
pub(in crate::rpc) fn size_range(range: Option<&v1::CapacityRange>) -> Result<SizeRange> {
    range.map_or(Ok(SizeRange::default()), |range| {
        SizeRange::from_wire("capacity_range", range.required_bytes, range.limit_bytes)
    })
}

/// Converts the source of a volume.
pub(super) fn source(source: Option<&v1::VolumeContentSource>) -> Result<Option<Source>> {
    let Some(source) = source else {
        return Ok(None);
    };
    Ok(Some(match &source.r#type {
        None => {
            return Err(Error::invalid(
                "volume_content_source.type is missing: set snapshot or volume",
            ));
        }
        Some(WireSource::Snapshot(snapshot)) => Source::Snapshot(Reference::parse(
            "volume_content_source.snapshot.snapshot_id",
            &snapshot.snapshot_id,
        )?),
        Some(WireSource::Volume(volume)) => Source::Volume(Reference::parse(
            "volume_content_source.volume.volume_id",
            &volume.volume_id,
        )?),
    }))
}

/// Converts an optional id.
pub(in crate::rpc) fn optional(field: &str, id: &str) -> Result<Option<Reference>> {
    let given = (!id.is_empty()).then_some(id);
    given.map(|id| Reference::parse(field, id)).transpose()
}

/// Converts an optional path.
pub(in crate::rpc) fn optional_path(field: &str, path: &str) -> Result<Option<AbsolutePath>> {
    let given = (!path.is_empty()).then_some(path);
    given
        .map(|path| AbsolutePath::parse(field, path))
        .transpose()
}

/// Converts the target path of a publication, with the directory that symbolic links must not lead out of.
pub(super) fn target(path: &str, root: Option<&str>) -> Result<Target> {
    let root = root.map(|root| RootPath::parse(MOUNT_ROOT, root));
    Ok(Target {
        path: AbsolutePath::parse("target_path", path)?,
        root: root.transpose()?,
    })
}

/// Reads a metadata value of a call as text.
pub(super) fn metadata_text(key: &str, value: &MetadataValue<Binary>) -> Result<String> {
    let bytes = value.to_bytes().ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
    text.ok_or_else(|| Error::invalid(format!("metadata {key} must be text")))
}

/// Converts the ids of the list `field`.
pub(in crate::rpc) fn references(field: &str, ids: &[String]) -> Result<Vec<Reference>> {
    let numbered = ids.iter().enumerate();
    numbered
        .map(|(index, id)| Reference::parse(&format!("{field}[{index}]"), id))
        .collect()
}

/// Converts the topology requirement of a volume.
pub(in crate::rpc) fn requirement(topology: Option<v1::TopologyRequirement>) -> Requirement {
    let all =
        |list: Vec<v1::Topology>| list.into_iter().map(|one| Topology(one.segments)).collect();
    topology.map_or_else(Requirement::default, |topology| Requirement {
        requisite: all(topology.requisite),
        preferred: all(topology.preferred),
    })
}

/// Converts the page request of a list.
pub(in crate::rpc) fn page(max_entries: i32, token: String) -> Result<PageRequest> {
    let max_entries = usize::try_from(max_entries)
        .map_err(|_| Error::invalid(format!("max_entries is negative: {max_entries}")))?;
    Ok(PageRequest {
        max_entries: (max_entries > 0).then_some(max_entries),
        token: (!token.is_empty()).then_some(token),
    })
}

/// Converts the read-only flag to the requested access.
pub(in crate::rpc) fn access(read_only: bool) -> Access {
    if read_only {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    }
}

/// Converts a volume to its message.
pub(in crate::rpc) fn volume(volume: &Volume) -> v1::Volume {
    v1::Volume {
        capacity_bytes: volume.size.to_wire(),
        volume_id: volume.handle.to_string(),
        volume_context: BTreeMap::new(),
        content_source: volume.source.as_ref().map(content_source),
        accessible_topology: vec![topology(&Topology::of(&volume.handle.node))],
    }
}

/// Converts a topology to its message.
pub(in crate::rpc) fn topology(topology: &Topology) -> v1::Topology {
    v1::Topology {
        segments: topology.0.clone(),
    }
}

fn content_source(source: &Source) -> v1::VolumeContentSource {
    let source = match source {
        Source::Snapshot(id) => WireSource::Snapshot(v1::volume_content_source::SnapshotSource {
            snapshot_id: id.to_string(),
        }),
        Source::Volume(id) => WireSource::Volume(v1::volume_content_source::VolumeSource {
            volume_id: id.to_string(),
        }),
    };
    v1::VolumeContentSource {
        r#type: Some(source),
    }
}

/// Converts a condition to its message.
pub(in crate::rpc) fn condition(condition: &Condition) -> v1::VolumeCondition {
    v1::VolumeCondition {
        abnormal: condition.abnormal,
        message: words(&condition.message),
    }
}

/// Truncates a text to the size of a field (CSI, "Size Limits"). The log has the full text.
pub(in crate::rpc) fn words(text: &str) -> String {
    const MOST: usize = 128;
    if text.len() <= MOST {
        return text.to_owned();
    }
    let kept = MOST - '…'.len_utf8();
    let mut ends = text.char_indices().map(|(at, _)| at);
    let end = ends.by_ref().take_while(|at| *at <= kept).last();
    let kept = text.get(..end.unwrap_or(0)).unwrap_or_default();
    format!("{kept}…")
}

/// Converts a snapshot to its message.
pub(in crate::rpc) fn snapshot(snapshot: &Snapshot) -> Result<v1::Snapshot> {
    Ok(v1::Snapshot {
        size_bytes: snapshot.size.to_wire(),
        snapshot_id: snapshot.handle.to_string(),
        source_volume_id: snapshot
            .of
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        creation_time: Some(timestamp(snapshot.created)?),
        ready_to_use: snapshot.damage.is_none(),
        group_snapshot_id: snapshot
            .group
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        accessible_topology: vec![topology(&Topology::of(&snapshot.handle.node))],
    })
}

/// Converts a time to its message.
pub(in crate::rpc) fn timestamp(time: SystemTime) -> Result<prost_types::Timestamp> {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_err(|error| Error::new(Kind::Bug, "creation time is before 1970").because(error))?;
    Ok(prost_types::Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or(0),
    })
}

/// Converts a number of bytes or inodes to the signed number of a message.
pub(in crate::rpc) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts a group snapshot with its members.
pub(in crate::rpc) fn group_snapshot(group: &GroupSnapshot) -> Result<v1::VolumeGroupSnapshot> {
    let snapshots: Result<_> = group.members.iter().map(snapshot).collect();
    Ok(v1::VolumeGroupSnapshot {
        group_snapshot_id: group.handle.to_string(),
        snapshots: snapshots?,
        creation_time: Some(timestamp(group.created)?),
        ready_to_use: group.ready,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use drumlin_proto::csi::v1::volume_capability::{
        AccessMode as WireMode, BlockVolume, MountVolume,
    };

    fn wire(access_type: Option<WireType>, mode: i32) -> v1::VolumeCapability {
        v1::VolumeCapability {
            access_type,
            access_mode: Some(WireMode { mode }),
        }
    }

    fn mount(mount: MountVolume) -> WireType {
        WireType::Mount(mount)
    }

    #[test]
    fn a_text_is_cut_where_a_field_ends_and_not_within_a_letter() {
        assert_eq!(words("volume is healthy"), "volume is healthy");
        let (fits, long) = ("x".repeat(128), "x".repeat(129));
        assert_eq!(words(&fits), fits);
        assert_eq!(words(&long), format!("{}…", "x".repeat(125)));
        let wide = words(&"é".repeat(65));
        assert_eq!(wide, format!("{}…", "é".repeat(62)));
        assert!(wide.len() <= 128);
    }

    #[test]
    fn what_is_wrong_with_a_capability_is_named() {
        let writer = Mode::SingleNodeWriter.into();
        let cases = [
            (None, "c is missing"),
            (Some(wire(None, writer)), "c.access_type"),
            (
                Some(wire(Some(WireType::Block(BlockVolume {})), 0)),
                "c.access_mode.mode is missing",
            ),
            (
                Some(wire(Some(WireType::Block(BlockVolume {})), 99)),
                "c.access_mode.mode 99",
            ),
            (
                Some(wire(
                    Some(mount(MountVolume {
                        fs_type: "ntfs".into(),
                        ..MountVolume::default()
                    })),
                    writer,
                )),
                "c.mount.fs_type",
            ),
            (
                Some(wire(
                    Some(mount(MountVolume {
                        volume_mount_group: "wheel".into(),
                        ..MountVolume::default()
                    })),
                    writer,
                )),
                "c.mount.volume_mount_group",
            ),
        ];
        for (request, message) in cases {
            let error = capability("c", request.as_ref()).unwrap_err();
            // An unknown file system is one that no volume supports.
            let kind = if message.ends_with("fs_type") {
                Kind::Unsupported
            } else {
                Kind::Invalid
            };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }

    #[test]
    fn a_negative_number_of_entries_is_wrong_and_none_means_all() {
        assert_eq!(page(-1, String::new()).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(page(0, String::new()).unwrap(), PageRequest::default());
        assert_eq!(page(2, "t".into()).unwrap().max_entries, Some(2));
    }

    #[test]
    fn a_source_must_say_what_it_is() {
        assert_eq!(source(None).unwrap(), None);
        let nothing = v1::VolumeContentSource { r#type: None };
        assert_eq!(source(Some(&nothing)).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn what_no_honest_caller_sends_is_refused_before_it_costs_anything() {
        let writer = Mode::SingleNodeWriter.into();
        let flags = |mount_flags| {
            let mount = MountVolume {
                mount_flags,
                ..MountVolume::default()
            };
            capability("c", Some(&wire(Some(WireType::Mount(mount)), writer)))
        };
        assert!(flags(vec!["noatime".to_owned(); 16]).is_ok());
        for too_much in [vec!["x".repeat(TEXT_BYTES + 1)], vec![String::new(); 2000]] {
            let error = flags(too_much).unwrap_err().to_string();
            assert!(error.starts_with("c.mount.mount_flags"), "{error}");
        }
        let many = vec![wire(Some(WireType::Block(BlockVolume {})), writer); ENTRIES + 1];
        assert_eq!(capabilities(&many).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(capabilities(&[]).unwrap_err().kind(), Kind::Invalid);
        assert!(some_capabilities(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_group_is_a_number_and_not_the_one_that_means_none() {
        let group = |number: &str| {
            let mount = MountVolume {
                volume_mount_group: number.to_owned(),
                ..MountVolume::default()
            };
            let mode = Mode::SingleNodeWriter.into();
            capability("c", Some(&wire(Some(WireType::Mount(mount)), mode)))
        };
        for right in ["", "0", "4294967294"] {
            assert!(group(right).is_ok(), "{right}");
        }
        for wrong in ["-1", "4294967295", "4294967296", "1 ", "0x1"] {
            assert_eq!(group(wrong).unwrap_err().kind(), Kind::Invalid, "{wrong}");
        }
    }

    #[test]
    fn a_size_names_its_field() {
        for (required_bytes, limit_bytes) in [(-1, 0), (0, -1), (2, 1)] {
            let range = v1::CapacityRange {
                required_bytes,
                limit_bytes,
            };
            let error = size_range(Some(&range)).unwrap_err();
            assert!(error.to_string().starts_with("capacity_range"), "{error}");
        }
        assert_eq!(size_range(None).unwrap(), SizeRange::default());
    }
}
