//! What the versions of CSI before 1 ask for otherwise than `csi.v1`. Their callers get it, in every such dialect alike:
//!
//! - to unpublish or unstage a volume that does not exist is `NOT_FOUND`, and so is an unknown node;
//! - a volume that is published to this node is `FAILED_PRECONDITION` for another node, with the name of this one;
//! - a volume of one node has one target at a time ([`ONE_TARGET`]): a second one is `FAILED_PRECONDITION`;
//! - its caller makes the target, which stays when the volume goes from there.

use drumlin_core::{
    Error, Kind, Result,
    ops::{Operations, PublishController},
    types::{Capability, Map, Reference},
};
use drumlin_proto::csi::v1;
use prost::Message;

use super::csi_v1::convert;

/// Whether a volume of one node has one target at a time.
pub(super) const ONE_TARGET: bool = true;
/// The highest number of an access mode.
const LAST_MODE: i32 = 5;

/// The message of `csi.v1` that has the same fields by the same numbers; what is not in it is dropped.
///
/// # Errors
/// `Bug` when it has others.
pub(super) fn same<T: Message + Default>(old: &impl Message) -> Result<T> {
    let decoded = T::decode(old.encode_to_vec().as_slice());
    decoded.map_err(|error| {
        Error::new(Kind::Bug, "could not convert a message to its csi.v1 form").because(error)
    })
}

/// One capability that came in `field`.
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

/// The capabilities that came in `volume_capabilities`, if any.
pub(super) fn some_capabilities(list: &[impl Message]) -> Result<Vec<Capability>> {
    convert::check_entries("volume_capabilities", list.len())?;
    list.iter()
        .enumerate()
        .map(|(index, one)| capability(&format!("volume_capabilities[{index}]"), Some(one)))
        .collect()
}

/// The capabilities that came in `volume_capabilities`: at least one.
pub(super) fn capabilities(list: &[impl Message]) -> Result<Vec<Capability>> {
    if list.is_empty() {
        return Err(Error::invalid("volume_capabilities is missing"));
    }
    some_capabilities(list)
}

/// Refuses to take away what does not exist.
///
/// # Errors
/// `NotFound`.
pub(super) async fn must_exist(operations: &Operations, volume: &Reference) -> Result<()> {
    match operations.get_volume(volume).await {
        Err(error) if error.kind() == Kind::NotFound => Err(error),
        // What else is wrong with it the call itself finds, if that matters there.
        _ => Ok(()),
    }
}

/// Publishes a volume to a node, which must be this one.
///
/// # Errors
/// Those of the operation; `Precondition` for another node while it is published to this one.
pub(super) async fn publish_controller(
    operations: &std::sync::Arc<Operations>,
    request: PublishController,
) -> Result<Map> {
    let volume = request.volume.clone();
    if request.node != operations.settings().node.as_str()
        && let Some(node) = operations.get_volume(&volume).await?.published
    {
        return Err(Error::new(
            Kind::Precondition,
            format!("the volume is already published to node {node}; unpublish it there first"),
        ));
    }
    operations.publish_controller(request).await
}

/// Takes the publication of a volume back.
///
/// # Errors
/// `NotFound` when there is no such volume or node.
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
