//! The agent as a dry run sees it: calls that only read reach the agent, calls that change anything are noted and
//! answered as the agent would if nothing speaks against them. Later answers follow from earlier ones.
//!
//! **Invariant:** only the calls that [`reads`] lists are ever sent.
#![expect(
    clippy::disallowed_methods,
    reason = "it answers in place of an agent, with the codes of one"
)]

mod groups;
mod offline;
mod snapshots;
mod volumes;

use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
};

use drumlin_proto::csi::v1;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::{Status, body::Body, transport::Channel};
use tower::{BoxError, ServiceExt};

use crate::state::lock;

/// The agent of a dry run.
#[derive(Debug)]
pub(crate) struct DryRun {
    /// The agent; `None` if it does not answer.
    agent: Option<Channel>,
    /// The name of its node.
    node: String,
    planned: Mutex<Planned>,
}

/// What there would be, beside what there is.
#[derive(Debug, Default)]
struct Planned {
    /// The calls since they were last asked for.
    calls: Vec<&'static str>,
    /// Sizes, in bytes, of volumes that would be created or grown.
    volumes: HashMap<String, i64>,
    /// Members of groups that would be created or changed.
    groups: HashMap<String, Vec<String>>,
    snapshots: HashMap<String, v1::Snapshot>,
    group_snapshots: HashMap<String, v1::VolumeGroupSnapshot>,
    /// The handles of what would be deleted.
    deleted: HashSet<String>,
    /// Number of handles that were invented.
    handles: usize,
}

/// What happens to a call.
enum Answer {
    /// It is sent to the agent.
    Forward,
    /// This message.
    Message(Vec<u8>),
}

impl Answer {
    fn message(message: &impl Message) -> Self {
        Self::Message(message.encode_to_vec())
    }

    /// A message without a field.
    fn empty() -> Self {
        Self::Message(Vec::new())
    }
}

impl Planned {
    /// Notes a call that changes something.
    fn note(&mut self, rpc: &'static str) {
        self.calls.push(rpc);
    }

    /// A handle for what would be created, in the class of this name or handle.
    fn handle(&mut self, node: &str, class: &str) -> String {
        self.handles += 1;
        let class = drumlin_crd::names::class_of(class).unwrap_or(class);
        format!("{node}/{class}/planned-{}", self.handles)
    }

    fn find(&self, handle: &str) -> Result<(), Status> {
        if self.deleted.contains(handle) {
            return Err(Status::not_found(format!("{handle} would be deleted")));
        }
        Ok(())
    }
}

impl DryRun {
    /// In front of an agent that answers.
    pub(crate) fn before(agent: Channel, node: String) -> Self {
        Self {
            agent: Some(agent),
            node,
            planned: Mutex::default(),
        }
    }

    /// Without an agent: its groups have these members.
    pub(crate) fn offline(node: String, groups: HashMap<String, Vec<String>>) -> Self {
        Self {
            agent: None,
            node,
            planned: Mutex::new(Planned {
                groups,
                ..Planned::default()
            }),
        }
    }

    /// The calls that would have changed something since this was last asked, in their order.
    pub(crate) fn take_calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut lock(&self.planned).calls)
    }

    /// The answer to a call.
    ///
    /// # Errors
    /// `NOT_FOUND` of what would be deleted, `UNIMPLEMENTED` of a call that a dry run does not know.
    fn answer(&self, method: &str, message: &[u8]) -> Result<Answer, Status> {
        let mut planned = lock(&self.planned);
        if let Some(answer) = planned.node_call(method) {
            return Ok(answer);
        }
        if let Some(answer) = planned.volume_call(method, message, &self.node)? {
            return Ok(answer);
        }
        if let Some(answer) = planned.snapshot_call(method, message, &self.node)? {
            return Ok(answer);
        }
        if let Some(answer) = planned.group_call(method, message, &self.node)? {
            return Ok(answer);
        }
        let found = planned.volume_read(method, message)?;
        if let Some(answer) = found.or(planned.snapshot_read(method, message)?) {
            return Ok(answer);
        }
        if reads(method) {
            return Ok(Answer::Forward);
        }
        let what = format!("a dry run does not know the call {method}");
        Err(Status::unimplemented(what))
    }

    /// Answers a call.
    pub(crate) async fn call(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (head, body) = request.into_parts();
        let bytes = body.collect().await?.to_bytes();
        // Behind the prefix of its frame: a flag and the length.
        let message = bytes.get(5..).unwrap_or_default();
        let answer = match (self.answer(head.uri.path(), message), &self.agent) {
            (Ok(Answer::Forward), Some(agent)) => {
                let request = Request::from_parts(head, Body::new(Full::new(bytes)));
                return Ok(agent.clone().oneshot(request).await?);
            }
            (Ok(Answer::Forward), None) => offline::answer(head.uri.path(), &self.node),
            (answer, _) => answer,
        };
        match answer {
            Ok(Answer::Message(message)) => framed(&message),
            Ok(Answer::Forward) => Ok(Status::unavailable("the agent does not answer").into_http()),
            Err(status) => Ok(status.into_http()),
        }
    }
}

fn read<M: Message + Default>(message: &[u8]) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::internal(error.to_string()))
}

/// True for the calls that change nothing.
fn reads(method: &str) -> bool {
    matches!(
        method,
        "/csi.v1.Identity/GetPluginInfo"
            | "/csi.v1.Identity/Probe"
            | "/csi.v1.Node/NodeGetInfo"
            | "/csi.v1.Node/NodeGetVolumeStats"
            | "/csi.v1.Controller/ControllerGetCapabilities"
            | "/csi.v1.Controller/ControllerGetVolume"
            | "/csi.v1.Controller/GetCapacity"
            | "/csi.v1.Controller/ListVolumes"
            | "/csi.v1.Controller/ListSnapshots"
            | "/csi.v1.Controller/ValidateVolumeCapabilities"
            | "/csi.v1.GroupController/GetVolumeGroupSnapshot"
            | "/volumegroup.Controller/ControllerGetVolumeGroup"
            | "/volumegroup.Controller/ListVolumeGroups"
            | "/drumlin.v1.Inventory/ListObjects"
    )
}

/// The answer to a call with one message.
fn framed(message: &[u8]) -> Result<Response<Body>, BoxError> {
    let length = u32::try_from(message.len())?;
    let mut frame = Vec::with_capacity(message.len() + 5);
    frame.push(0);
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let body = Full::new(bytes::Bytes::from(frame));
    let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
    Ok(Response::builder()
        .header("content-type", "application/grpc")
        .body(Body::new(body))?)
}
