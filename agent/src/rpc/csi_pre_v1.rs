//! Differences of the CSI versions before 1 from `csi.v1`, shared by all of these dialects:
//!
//! - unpublishing or unstaging a volume that does not exist is `NOT_FOUND`, as is an unknown node;
//! - the caller creates the target, which is kept after unpublish.

use drumlin_core::{
    Error, Kind, Result,
    ops::{Operations, ValidateVolume},
    types::{Capability, Map, Reference},
};
use drumlin_proto::csi::v1;
use prost::Message;

use super::csi_v1::convert;

/// The highest number of an access mode.
const LAST_MODE: i32 = 5;

/// Converts to the message of `csi.v1` that has the same fields with the same numbers; other fields are dropped.
///
/// # Errors
/// `Bug` if the fields are incompatible.
pub(super) fn same<T: Message + Default>(old: &impl Message) -> Result<T> {
    let decoded = T::decode(old.encode_to_vec().as_slice());
    decoded.map_err(|error| {
        Error::new(Kind::Bug, "could not convert a message to its csi.v1 form").because(error)
    })
}

/// Converts one capability received in `field`.
pub(super) fn capability(field: &str, old: Option<&impl Message>) -> Result<Capability> {
    let new: Option<v1::VolumeCapability> = old.map(same).transpose()?;
    let mode = new.as_ref().and_then(|new| new.access_mode.as_ref());
    if let Some(mode) = mode.filter(|mode| mode.mode > LAST_MODE) {
        return Err(Error::invalid(format!(
            "{field}.access_mode.mode {} is unknown",
            mode.mode
        )));
    }
    convert::capability(field, new.as_ref())
}

/// Converts the capabilities received in `volume_capabilities`, if any.
pub(super) fn some_capabilities(list: &[impl Message]) -> Result<Vec<Capability>> {
    convert::check_entries("volume_capabilities", list.len())?;
    list.iter()
        .enumerate()
        .map(|(index, one)| capability(&format!("volume_capabilities[{index}]"), Some(one)))
        .collect()
}

/// Converts the capabilities received in `volume_capabilities`: at least one.
pub(super) fn capabilities(list: &[impl Message]) -> Result<Vec<Capability>> {
    if list.is_empty() {
        return Err(Error::invalid("volume_capabilities is missing"));
    }
    some_capabilities(list)
}

/// What a caller takes a volume for.
///
/// # Errors
/// `Invalid` for a malformed capability.
pub(super) fn validation(
    volume: Reference,
    list: &[impl Message],
    attributes: &Map,
) -> Result<ValidateVolume> {
    let context = convert::volume_context("volume_attributes", attributes);
    Ok(ValidateVolume {
        volume,
        capabilities: convert::supported(context.and(capabilities(list)))?,
        parameters: Map::new(),
        mutable: Map::new(),
    })
}

/// Refuses to unstage or unpublish a volume that does not exist.
///
/// # Errors
/// `NotFound`.
pub(super) async fn must_exist(operations: &Operations, volume: &Reference) -> Result<()> {
    match operations.get_volume(volume).await {
        Err(error) if error.kind() == Kind::NotFound => Err(error),
        // Other problems of the volume are reported by the call itself, where relevant.
        _ => Ok(()),
    }
}

/// Removes the controller publication of a volume.
///
/// # Errors
/// `NotFound` if the volume or node does not exist.
pub(super) async fn unpublish_controller(
    operations: &std::sync::Arc<Operations>,
    volume: &Reference,
    node: &str,
) -> Result<()> {
    must_exist(operations, volume).await?;
    let ours = operations.settings().node.as_str();
    if !node.is_empty() && node != ours {
        return Err(Error::not_found(format!(
            "node {node:?} does not exist here; this is node {ours}"
        )));
    }
    operations.unpublish_controller(volume, None).await
}
