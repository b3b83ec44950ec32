//! What a dry run takes for granted of an agent that does not answer.

use drumlin_proto::csi::v1;
use tonic::Status;

use super::{Answer, volumes::confirmed};

/// The answer to a call that reads.
///
/// # Errors
/// UNIMPLEMENTED where nothing can be said: what is not known is left as the state files have it.
pub(super) fn answer(method: &str, node: &str) -> Result<Answer, Status> {
    Ok(match method {
        "/csi.v1.Node/NodeGetInfo" => Answer::message(&v1::NodeGetInfoResponse {
            node_id: node.to_owned(),
            ..v1::NodeGetInfoResponse::default()
        }),
        "/csi.v1.Controller/ValidateVolumeCapabilities" => confirmed(),
        "/csi.v1.Identity/GetPluginInfo"
        | "/csi.v1.Identity/Probe"
        | "/csi.v1.Controller/ControllerGetCapabilities" => Answer::empty(),
        _ => return Err(Status::unimplemented("the agent does not answer")),
    })
}
