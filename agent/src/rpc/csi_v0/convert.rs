//! Converts requests to validated values, and results to messages.

use drumlin_core::{
    Error, Kind, Result,
    ops::{Snapshot, Source, Volume},
    types::Reference,
};
use drumlin_proto::csi::v0::{
    self, snapshot_status::Type as Status, volume_content_source as source,
};

use crate::rpc::{csi_pre_v1::same, csi_v1::convert};

/// Converts the source of a volume: a snapshot.
pub(super) fn source(source: Option<&v0::VolumeContentSource>) -> Result<Option<Source>> {
    let Some(source) = source else {
        return Ok(None);
    };
    let Some(source::Type::Snapshot(snapshot)) = &source.r#type else {
        return Err(Error::invalid(
            "volume_content_source.type is missing: set snapshot",
        ));
    };
    let id = Reference::parse("volume_content_source.snapshot.id", &snapshot.id)?;
    Ok(Some(Source::Snapshot(id)))
}

/// Converts a volume to its message.
pub(super) fn volume(volume: &Volume) -> Result<v0::Volume> {
    let new = convert::volume(volume);
    let content_source = match &volume.source {
        // CSI 0.3 cannot represent a volume that is a copy of another volume.
        None | Some(Source::Volume(_)) => None,
        Some(Source::Snapshot(id)) => Some(v0::VolumeContentSource {
            r#type: Some(source::Type::Snapshot(source::SnapshotSource {
                id: id.to_string(),
            })),
        }),
    };
    Ok(v0::Volume {
        capacity_bytes: new.capacity_bytes,
        id: new.volume_id,
        attributes: new.volume_context,
        content_source,
        accessible_topology: new
            .accessible_topology
            .iter()
            .map(same)
            .collect::<Result<_>>()?,
    })
}

/// Converts the snapshot that a create call asks for, which must be ready.
///
/// # Errors
/// `Precondition` if it exists and is damaged.
pub(super) fn created_snapshot(found: &Snapshot) -> Result<v0::Snapshot> {
    match &found.damage {
        None => snapshot(found),
        Some(why) => Err(Error::new(
            Kind::Precondition,
            format!(
                "snapshot {} exists and is damaged: {why}; delete it",
                found.handle
            ),
        )),
    }
}

/// Converts a snapshot to its message.
pub(super) fn snapshot(snapshot: &Snapshot) -> Result<v0::Snapshot> {
    let new = convert::snapshot(snapshot)?;
    let created = new.creation_time.unwrap_or_default();
    let nanoseconds = created.seconds.saturating_mul(1_000_000_000);
    // A snapshot is ready as soon as it is reported. One that was damaged since gets the status that makes callers
    // delete it.
    let status = match snapshot.damage {
        None => Status::Ready,
        Some(_) => Status::ErrorUploading,
    };
    Ok(v0::Snapshot {
        size_bytes: new.size_bytes,
        id: new.snapshot_id,
        source_volume_id: new.source_volume_id,
        created_at: nanoseconds.saturating_add(i64::from(created.nanos)),
        status: Some(v0::SnapshotStatus {
            r#type: status.into(),
            details: snapshot
                .damage
                .as_deref()
                .map(convert::words)
                .unwrap_or_default(),
        }),
    })
}
