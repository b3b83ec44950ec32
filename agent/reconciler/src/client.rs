//! The CSI socket: every call has a deadline, and every failure a code.

use std::{future::Future, path::Path, time::Duration};

use drumlin_proto::{
    csi::v1::{
        self, controller_client::ControllerClient, group_controller_client::GroupControllerClient,
        identity_client::IdentityClient, node_client::NodeClient,
    },
    volumegroup,
};
use tonic::{Code, Response, Status, transport::Channel};

use crate::Error;

/// How long most calls may take.
pub(crate) const SHORT: Duration = Duration::from_mins(1);
/// How long a call may take that formats, copies or removes.
pub(crate) const LONG: Duration = Duration::from_mins(5);

/// A connection to the agent, made when it is used.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    channel: Channel,
}

/// A call that did not succeed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) rpc: &'static str,
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// What the agent says of itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Agent {
    pub(crate) node: String,
    pub(crate) topology: Option<v1::Topology>,
    /// Volumes must be published by the controller first.
    pub(crate) attach: bool,
}

impl Client {
    pub(crate) fn new(socket: &Path) -> Result<Self, Error> {
        let channel =
            drumlin_proto::connect(socket).map_err(|error| Error::Endpoint(error.to_string()))?;
        Ok(Self { channel })
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone()).max_decoding_message_size(64 << 20)
    }

    pub(crate) fn group_controller(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel.clone())
    }

    pub(crate) fn groups(&self) -> volumegroup::controller_client::ControllerClient<Channel> {
        volumegroup::controller_client::ControllerClient::new(self.channel.clone())
    }

    pub(crate) fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    /// Whether the agent can work now.
    pub(crate) async fn probe(&self) -> Result<(), Failure> {
        let mut identity = IdentityClient::new(self.channel.clone());
        let answer = call("Probe", SHORT, identity.probe(v1::ProbeRequest {})).await?;
        // An agent that says nothing is ready (CSI, Probe).
        if answer.ready == Some(false) {
            return Err(Failure {
                rpc: "Probe",
                code: Code::Unavailable,
                message: "the agent is not ready yet".to_owned(),
            });
        }
        Ok(())
    }

    /// What the agent says of itself.
    pub(crate) async fn agent(&self) -> Result<Agent, Failure> {
        use v1::controller_service_capability::{Type, rpc};
        let info = call(
            "NodeGetInfo",
            SHORT,
            self.node().node_get_info(v1::NodeGetInfoRequest {}),
        )
        .await?;
        let request = v1::ControllerGetCapabilitiesRequest {};
        let mut controller = self.controller();
        let can = call(
            "ControllerGetCapabilities",
            SHORT,
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
            message: status.message().to_owned(),
        }),
        Err(_) => Err(Failure {
            rpc,
            code: Code::DeadlineExceeded,
            message: format!("no answer within {} s", patience.as_secs()),
        }),
    }
}
