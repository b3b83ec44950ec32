//! Client of the CSI socket: every call has a deadline, and every failure a code.

use std::{future::Future, path::Path, sync::Arc, time::Duration};

use drumlin_crd::{Progress, names};
use drumlin_proto::{
    csi::v1::{
        self, controller_client::ControllerClient, group_controller_client::GroupControllerClient,
        identity_client::IdentityClient, node_client::NodeClient,
    },
    drumlin::v1::trash_client::TrashClient,
    volumegroup,
};
use tonic::{Code, Response, Status};
use tonic_types::StatusExt as _;

use crate::{Error, dry_run::DryRun, inventory::Cache, transport::Transport};

/// Timeout for a call of a pass. A longer operation continues in the agent and the call is retried, so that no other
/// object waits behind it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout for a list of all resources, which no object waits for.
pub(crate) const LIST: Duration = Duration::from_mins(1);

/// A connection to the agent, established on first use.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    transport: Transport,
    pub(crate) inventory: Cache,
}

/// A failed call.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) rpc: &'static str,
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) cause: Cause,
    /// How far the operation is that the call waits for.
    pub(crate) progress: Option<Progress>,
}

/// Where the failure of a call comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The agent answered with this failure.
    Answer,
    /// The agent was not reached, or the connection broke.
    Transport,
    /// The agent did not answer in time.
    Deadline,
}

/// The identity and capabilities of the agent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Agent {
    pub(crate) node: String,
    pub(crate) topology: Option<v1::Topology>,
    /// Volumes must be published by `ControllerPublishVolume` first.
    pub(crate) attach: bool,
}

impl Client {
    pub(crate) fn new(socket: &Path) -> Result<Self, Error> {
        let channel =
            drumlin_proto::connect(socket).map_err(|error| Error::Endpoint(error.to_string()))?;
        Ok(Self {
            transport: Transport::Socket(channel),
            inventory: Cache::default(),
        })
    }

    /// A client whose calls a dry run answers.
    pub(crate) fn dry_run(dry_run: Arc<DryRun>) -> Self {
        Self {
            transport: Transport::DryRun(dry_run),
            inventory: Cache::default(),
        }
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport.clone()
    }

    pub(crate) fn controller(&self) -> ControllerClient<Transport> {
        ControllerClient::new(self.transport.clone()).max_decoding_message_size(64 << 20)
    }

    pub(crate) fn group_controller(&self) -> GroupControllerClient<Transport> {
        GroupControllerClient::new(self.transport.clone())
    }

    pub(crate) fn groups(&self) -> volumegroup::controller_client::ControllerClient<Transport> {
        volumegroup::controller_client::ControllerClient::new(self.transport.clone())
    }

    pub(crate) fn node(&self) -> NodeClient<Transport> {
        NodeClient::new(self.transport.clone())
    }

    pub(crate) fn trash(&self) -> TrashClient<Transport> {
        TrashClient::new(self.transport.clone()).max_decoding_message_size(64 << 20)
    }

    /// Checks that the agent answers, with a call that depends on no class: a failed class must not stop the others.
    pub(crate) async fn greet(&self) -> Result<(), Failure> {
        let mut identity = IdentityClient::new(self.transport.clone());
        let answer = identity.get_plugin_info(v1::GetPluginInfoRequest {});
        call("GetPluginInfo", PATIENCE, answer).await.map(drop)
    }

    /// Checks that all classes are available; the failure names one that is not.
    pub(crate) async fn probe(&self) -> Result<(), Failure> {
        let mut identity = IdentityClient::new(self.transport.clone());
        let answer = identity.probe(v1::ProbeRequest {});
        call("Probe", LIST, answer).await.map(drop)
    }

    /// The room of a class (csi.v1, `GetCapacity`); an empty name stands for the default class.
    pub(crate) async fn room(&self, class: &str) -> Result<Room, Failure> {
        let named = (!class.is_empty()).then(|| ("class".to_owned(), class.to_owned()));
        let request = v1::GetCapacityRequest {
            parameters: named.into_iter().collect(),
            ..v1::GetCapacityRequest::default()
        };
        let mut controller = self.controller();
        let answer = call("GetCapacity", PATIENCE, controller.get_capacity(request)).await?;
        let available = u64::try_from(answer.available_capacity).unwrap_or(0);
        let largest = answer.maximum_volume_size;
        Ok(Room {
            available,
            largest: largest.map_or(available, |largest| u64::try_from(largest).unwrap_or(0)),
        })
    }

    /// The identity and capabilities of the agent.
    pub(crate) async fn agent(&self) -> Result<Agent, Failure> {
        use v1::controller_service_capability::{Type, rpc};
        let info = call(
            "NodeGetInfo",
            PATIENCE,
            self.node().node_get_info(v1::NodeGetInfoRequest {}),
        )
        .await?;
        let request = v1::ControllerGetCapabilitiesRequest {};
        let mut controller = self.controller();
        let can = call(
            "ControllerGetCapabilities",
            PATIENCE,
            controller.controller_get_capabilities(request),
        )
        .await?;
        let publishes = i32::from(rpc::Type::PublishUnpublishVolume);
        let attach = can.capabilities.iter().any(|capability| {
            matches!(&capability.r#type, Some(Type::Rpc(rpc)) if rpc.r#type == publishes)
        });
        Ok(Agent {
            node: info.node_id,
            topology: info.accessible_topology,
            attach,
        })
    }
}

/// The room of a class, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// For all new volumes together.
    pub(crate) available: u64,
    /// For the largest of them.
    pub(crate) largest: u64,
}

/// Waits for an answer, at most for `patience`.
pub(crate) async fn call<T>(
    rpc: &'static str,
    patience: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Failure> {
    let answer = tokio::time::timeout(patience, answer).await;
    match answer {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(Failure {
            rpc,
            code: status.code(),
            progress: progress_of(&status),
            message: status.message().to_owned(),
            // A failure that the agent itself reported has no source error.
            cause: match std::error::Error::source(&status) {
                Some(_) => Cause::Transport,
                None => Cause::Answer,
            },
        }),
        Err(_) => Err(Failure {
            rpc,
            code: Code::DeadlineExceeded,
            message: format!(
                "no answer within {} s; the operation continues, and the call is retried",
                patience.as_secs()
            ),
            cause: Cause::Deadline,
            progress: None,
        }),
    }
}

/// The outcome of a call that ends something: what does not exist has ended already.
pub(crate) fn gone_is_fine<T>(answer: Result<T, Failure>) -> Result<(), Failure> {
    match answer {
        Err(failure) if failure.code != Code::NotFound => Err(failure),
        _ => Ok(()),
    }
}

/// How far the operation is that a refused call waits for, as the details of the refusal say.
pub fn progress_of(status: &Status) -> Option<Progress> {
    let info = status.get_details_error_info()?;
    if (info.reason.as_str(), info.domain.as_str()) != (names::IN_PROGRESS, names::DOMAIN) {
        return None;
    }
    let number = |key: &str| info.metadata.get(key)?.parse().ok();
    Some(Progress {
        operation: info.metadata.get("operation")?.clone(),
        percent: info.metadata.get("percent")?.parse().ok()?,
        bytes_per_second: number("bytesPerSecond"),
        seconds_left: number("secondsLeft"),
    })
}
