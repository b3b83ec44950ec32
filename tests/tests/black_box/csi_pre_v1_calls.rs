//! Calls in the dialects before `csi.v1`: what a test does in one of them it does in the other.

use std::collections::BTreeMap;

use drumlin_proto::csi::{v0, v0_1, v1::VolumeCapability};
use drumlin_tests::agent::Agent;
use prost::Message;
use tonic::{Status, transport::Channel};

/// What every request of CSI 0.1 says.
const VERSION: Option<v0_1::Version> = Some(v0_1::Version {
    major: 0,
    minor: 1,
    patch: 0,
});

/// A dialect before `csi.v1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    V0_1,
    V0_3,
}

/// All of them.
pub(crate) const OLD: [Dialect; 2] = [Dialect::V0_1, Dialect::V0_3];

/// A caller of an agent in one of them.
pub(crate) struct Caller {
    dialect: Dialect,
    channel: Channel,
}

/// A volume as both dialects tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) bytes: i64,
    pub(crate) attributes: BTreeMap<String, String>,
}

/// The message of another dialect that has the same fields by the same numbers.
fn same<T: Message + Default>(message: &impl Message) -> T {
    T::decode(message.encode_to_vec().as_slice()).unwrap()
}

fn list<T: Message + Default>(capabilities: &[VolumeCapability]) -> Vec<T> {
    capabilities.iter().map(same).collect()
}

/// What is made of an answer that has nothing in it.
fn nothing<T>(_: T) {}

/// Sends a request in the caller's dialect, and makes the same of either answer.
macro_rules! send {
    ($caller:ident, $service:ident::$client:ident.$rpc:ident, $old:expr => $from_old:expr, $new:expr => $from_new:expr) => {{
        let channel = $caller.channel.clone();
        match $caller.dialect {
            Dialect::V0_1 => {
                let mut client = v0_1::$service::$client::new(channel);
                let answer = client.$rpc($old).await;
                answer.map(|answer| $from_old(answer.into_inner()))
            }
            Dialect::V0_3 => {
                let mut client = v0::$service::$client::new(channel);
                let answer = client.$rpc($new).await;
                answer.map(|answer| $from_new(answer.into_inner()))
            }
        }
    }};
}

impl Caller {
    pub(crate) fn of(agent: &Agent, dialect: Dialect) -> Self {
        Self {
            dialect,
            channel: drumlin_proto::connect(&agent.socket()).unwrap(),
        }
    }

    /// Makes a volume of at least and at most so many bytes.
    pub(crate) async fn create(
        &self,
        name: &str,
        (required, limit): (i64, i64),
        capabilities: &[VolumeCapability],
    ) -> Result<Made, Status> {
        let range = v0::CapacityRange {
            required_bytes: required,
            limit_bytes: limit,
        };
        let from_old = |answer: v0_1::CreateVolumeResponse| told_old(answer.volume_info);
        let from_new = |answer: v0::CreateVolumeResponse| told_new(answer.volume);
        send!(self, controller_client::ControllerClient.create_volume,
            v0_1::CreateVolumeRequest {
                version: VERSION,
                name: name.to_owned(),
                capacity_range: Some(same(&range)),
                volume_capabilities: list(capabilities),
                ..Default::default()
            } => from_old,
            v0::CreateVolumeRequest {
                name: name.to_owned(),
                capacity_range: Some(range),
                volume_capabilities: list(capabilities),
                ..Default::default()
            } => from_new)
    }

    pub(crate) async fn delete(&self, id: &str) -> Result<(), Status> {
        let volume_id = id.to_owned();
        send!(self, controller_client::ControllerClient.delete_volume,
            v0_1::DeleteVolumeRequest { version: VERSION, volume_id, ..Default::default() } => nothing,
            v0::DeleteVolumeRequest { volume_id, ..Default::default() } => nothing)
    }

    /// All volumes.
    pub(crate) async fn volumes(&self) -> Result<Vec<Made>, Status> {
        let from_old = |answer: v0_1::ListVolumesResponse| {
            let entries = answer.entries.into_iter();
            entries.map(|entry| told_old(entry.volume_info)).collect()
        };
        let from_new = |answer: v0::ListVolumesResponse| {
            let entries = answer.entries.into_iter();
            entries.map(|entry| told_new(entry.volume)).collect()
        };
        send!(self, controller_client::ControllerClient.list_volumes,
            v0_1::ListVolumesRequest { version: VERSION, ..Default::default() } => from_old,
            v0::ListVolumesRequest::default() => from_new)
    }

    /// Publishes a volume to a node by the controller.
    pub(crate) async fn attach(
        &self,
        (id, node): (&str, &str),
        capability: &VolumeCapability,
        readonly: bool,
    ) -> Result<(), Status> {
        let (volume_id, node_id) = (id.to_owned(), node.to_owned());
        send!(self, controller_client::ControllerClient.controller_publish_volume,
            v0_1::ControllerPublishVolumeRequest {
                version: VERSION,
                volume_id,
                node_id,
                volume_capability: Some(same(capability)),
                readonly,
                ..Default::default()
            } => nothing,
            v0::ControllerPublishVolumeRequest {
                volume_id,
                node_id,
                volume_capability: Some(same(capability)),
                readonly,
                ..Default::default()
            } => nothing)
    }

    /// Takes that back; from every node when none is named.
    pub(crate) async fn detach(&self, id: &str, node: &str) -> Result<(), Status> {
        let (volume_id, node_id) = (id.to_owned(), node.to_owned());
        send!(self, controller_client::ControllerClient.controller_unpublish_volume,
            v0_1::ControllerUnpublishVolumeRequest {
                version: VERSION, volume_id, node_id, ..Default::default()
            } => nothing,
            v0::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() } => nothing)
    }

    /// Whether a volume can be used in all these ways, and what is said about it.
    pub(crate) async fn validate(
        &self,
        id: &str,
        capabilities: &[VolumeCapability],
    ) -> Result<(bool, String), Status> {
        let volume_id = id.to_owned();
        let from_old =
            |answer: v0_1::ValidateVolumeCapabilitiesResponse| (answer.supported, answer.message);
        let from_new =
            |answer: v0::ValidateVolumeCapabilitiesResponse| (answer.supported, answer.message);
        send!(self, controller_client::ControllerClient.validate_volume_capabilities,
            v0_1::ValidateVolumeCapabilitiesRequest {
                version: VERSION,
                volume_id,
                volume_capabilities: list(capabilities),
                ..Default::default()
            } => from_old,
            v0::ValidateVolumeCapabilitiesRequest {
                volume_id,
                volume_capabilities: list(capabilities),
                ..Default::default()
            } => from_new)
    }

    /// The room in a class for volumes that are used so, in bytes.
    pub(crate) async fn room(
        &self,
        class: &str,
        capabilities: &[VolumeCapability],
    ) -> Result<i64, Status> {
        let parameters: BTreeMap<String, String> = [("class".to_owned(), class.to_owned())].into();
        let from_old =
            |answer: v0_1::GetCapacityResponse| i64::try_from(answer.available_capacity).unwrap();
        let from_new = |answer: v0::GetCapacityResponse| answer.available_capacity;
        send!(self, controller_client::ControllerClient.get_capacity,
            v0_1::GetCapacityRequest {
                version: VERSION,
                parameters,
                volume_capabilities: list(capabilities),
            } => from_old,
            v0::GetCapacityRequest {
                parameters,
                volume_capabilities: list(capabilities),
                ..Default::default()
            } => from_new)
    }

    /// Publishes a volume on the node; where there is staging it is staged at `staging`.
    pub(crate) async fn publish(
        &self,
        id: &str,
        (staging, target): (&str, &str),
        capability: &VolumeCapability,
        readonly: bool,
    ) -> Result<(), Status> {
        let (volume_id, target_path) = (id.to_owned(), target.to_owned());
        send!(self, node_client::NodeClient.node_publish_volume,
            v0_1::NodePublishVolumeRequest {
                version: VERSION,
                volume_id,
                target_path,
                volume_capability: Some(same(capability)),
                readonly,
                ..Default::default()
            } => nothing,
            v0::NodePublishVolumeRequest {
                volume_id,
                staging_target_path: staging.to_owned(),
                target_path,
                volume_capability: Some(same(capability)),
                readonly,
                ..Default::default()
            } => nothing)
    }

    pub(crate) async fn unpublish(&self, id: &str, target: &str) -> Result<(), Status> {
        let (volume_id, target_path) = (id.to_owned(), target.to_owned());
        send!(self, node_client::NodeClient.node_unpublish_volume,
            v0_1::NodeUnpublishVolumeRequest {
                version: VERSION, volume_id, target_path, ..Default::default()
            } => nothing,
            v0::NodeUnpublishVolumeRequest { volume_id, target_path } => nothing)
    }

    /// Stages a volume where there is staging; elsewhere there is nothing to do.
    pub(crate) async fn stage(
        &self,
        id: &str,
        staging: &str,
        capability: &VolumeCapability,
    ) -> Result<(), Status> {
        if self.dialect == Dialect::V0_1 {
            return Ok(());
        }
        let request = v0::NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: staging.to_owned(),
            volume_capability: Some(same(capability)),
            ..Default::default()
        };
        let mut client = v0::node_client::NodeClient::new(self.channel.clone());
        client.node_stage_volume(request).await.map(drop)
    }

    /// Takes that back.
    pub(crate) async fn unstage(&self, id: &str, staging: &str) -> Result<(), Status> {
        if self.dialect == Dialect::V0_1 {
            return Ok(());
        }
        let request = v0::NodeUnstageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: staging.to_owned(),
        };
        let mut client = v0::node_client::NodeClient::new(self.channel.clone());
        client.node_unstage_volume(request).await.map(drop)
    }

    /// What every probe of the dialect says.
    pub(crate) async fn probes(&self) -> Vec<Result<(), Status>> {
        let channel = || self.channel.clone();
        if self.dialect == Dialect::V0_3 {
            let mut identity = v0::identity_client::IdentityClient::new(channel());
            return vec![identity.probe(v0::ProbeRequest {}).await.map(drop)];
        }
        let mut controller = v0_1::controller_client::ControllerClient::new(channel());
        let mut node = v0_1::node_client::NodeClient::new(channel());
        let request = v0_1::ControllerProbeRequest { version: VERSION };
        let first = controller.controller_probe(request).await.map(drop);
        let request = v0_1::NodeProbeRequest { version: VERSION };
        vec![first, node.node_probe(request).await.map(drop)]
    }
}

fn told_old(volume: Option<v0_1::VolumeInfo>) -> Made {
    let volume = volume.unwrap();
    Made {
        id: volume.id,
        bytes: i64::try_from(volume.capacity_bytes).unwrap(),
        attributes: volume.attributes,
    }
}

fn told_new(volume: Option<v0::Volume>) -> Made {
    let volume = volume.unwrap();
    Made {
        id: volume.id,
        bytes: volume.capacity_bytes,
        attributes: volume.attributes,
    }
}
