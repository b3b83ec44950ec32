//! The volumes of the cluster: create, delete, expand, modify, validate, capacity.

use std::time::Duration;

use drumlin_crd::names::node_of;
use drumlin_proto::csi::v1::{self, volume_content_source::Type};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    answers::Answerer,
    calls::Failure,
    front::{Front, end_of_waiting, selected_node},
    method::{CREATE_VOLUME, DELETE_VOLUME, EXPAND_VOLUME, MODIFY_VOLUME, VALIDATE_VOLUME},
    node_call::NodeCall,
    refusal::Refusal,
};

/// The topology key whose value is the node.
pub(crate) const TOPOLOGY: &str = "topology.drumlin.dev/node";
/// The parameter that names the class.
const CLASS: &str = "class";

/// What a volume is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Nothing: any node will do.
    Fresh,
    /// A volume or snapshot: it is made where that is.
    Copy,
}

/// The nodes on which a volume may be created, in the order of preference.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placement {
    nodes: Vec<String>,
    origin: Origin,
}

impl Front {
    /// Creates a volume on the node that is chosen for it (CSI, `CreateVolume`).
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if another node may do; else the code of the agent.
    pub async fn create_volume(
        &self,
        request: v1::CreateVolumeRequest,
        patience: Duration,
    ) -> Result<v1::CreateVolumeResponse, Refusal> {
        if request.name.is_empty() {
            return Err(Refusal::invalid("name is missing"));
        }
        let deadline = end_of_waiting(patience);
        let name = CREATE_VOLUME.call_name(&request.name);
        let open = self.calls.find(&name).await;
        let open = open.map_err(|failure| Refusal::of("", failure))?;
        // A create whose outcome is unknown goes on where it is, or has to end first.
        let mut open = open.filter(|open| !open.is_settled());
        let placement = self.placement(&request, open.as_ref())?;
        let mut last = None;
        for (index, node) in placement.nodes.iter().enumerate() {
            if let Some(open) = open.take() {
                self.leave_other_node(node, &open).await?;
            }
            let answer = self
                .create_on(node, &request, placement.origin, deadline)
                .await;
            match answer {
                Err(refusal)
                    if refusal.code == Code::ResourceExhausted
                        && index + 1 < placement.nodes.len()
                        && self.may_move(&request).await? =>
                {
                    last = Some(refusal);
                }
                answer => return answer,
            }
        }
        Err(last.unwrap_or_else(|| {
            Refusal::new(
                Code::ResourceExhausted,
                "no node of the cluster has the class with room for the volume",
            )
        }))
    }

    async fn create_on(
        &self,
        node: &str,
        request: &v1::CreateVolumeRequest,
        origin: Origin,
        deadline: Instant,
    ) -> Result<v1::CreateVolumeResponse, Refusal> {
        let here = v1::CreateVolumeRequest {
            accessibility_requirements: Some(v1::TopologyRequirement {
                requisite: vec![topology(node)],
                preferred: vec![topology(node)],
            }),
            ..request.clone()
        };
        let about = (node, &CREATE_VOLUME, request.name.as_str());
        let answer: Result<v1::CreateVolumeResponse, Failure> =
            self.ask(about, &here, deadline).await;
        match answer {
            Ok(response) => Answerer(node).created_volume(&here, response),
            // Nothing was made: another node will do.
            Err(Failure::Withdrawn) if origin == Origin::Fresh => Err(Refusal::new(
                Code::ResourceExhausted,
                format!("the agent of node {node} does not answer"),
            )),
            // What there may be left on its disks is found by the audit, should the node return.
            Err(Failure::NodeGone) => Err(Refusal::new(
                Code::ResourceExhausted,
                format!("node {node} is not a part of the cluster any more"),
            )),
            Err(failure) => Err(Refusal::of(node, failure)),
        }
    }

    /// An open create of the same volume on another node is withdrawn, or has to end first.
    async fn leave_other_node(&self, node: &str, open: &NodeCall) -> Result<(), Refusal> {
        let other = &open.spec.node_name;
        if other == node || self.view.is_gone(other).await == Ok(true) {
            return Ok(());
        }
        if self.calls.withdraw(open).await {
            return Ok(());
        }
        Err(Refusal::of(node, Failure::Conflict(other.clone())))
    }

    /// Where a volume may be created.
    fn placement(
        &self,
        request: &v1::CreateVolumeRequest,
        open: Option<&NodeCall>,
    ) -> Result<Placement, Refusal> {
        let required = request.accessibility_requirements.as_ref();
        let requisite = nodes(required.map_or(&[][..], |required| &required.requisite));
        let preferred = nodes(required.map_or(&[][..], |required| &required.preferred));
        if let Some(source) = source(request)? {
            let Some(node) = node_of(source) else {
                return Err(Refusal::new(
                    Code::NotFound,
                    format!("volume_content_source: {source} does not exist"),
                ));
            };
            if !requisite.is_empty() && !requisite.iter().any(|one| one == node) {
                return Err(Refusal::invalid(format!(
                    "volume_content_source: {source} is on node {node}, and the volume is to be on {}; a copy is made on the node of its source",
                    requisite.join(", ")
                )));
            }
            return Ok(Placement {
                nodes: vec![node.to_owned()],
                origin: Origin::Copy,
            });
        }
        let mut nodes = if requisite.is_empty() && preferred.is_empty() {
            self.by_room(request)
        } else {
            let rest = requisite
                .iter()
                .filter(|node| !preferred.contains(node))
                .cloned();
            preferred.iter().cloned().chain(rest).collect()
        };
        if let Some(open) = open
            && let Some(index) = nodes.iter().position(|node| *node == open.spec.node_name)
        {
            let open = nodes.remove(index);
            nodes.insert(0, open);
        }
        Ok(Placement {
            nodes,
            origin: Origin::Fresh,
        })
    }

    /// The nodes that can take a volume, the one with most room first.
    fn by_room(&self, request: &v1::CreateVolumeRequest) -> Vec<String> {
        let class = request.parameters.get(CLASS).map(String::as_str);
        let mut rooms: Vec<(i64, String)> = self
            .view
            .nodes_with(class)
            .into_iter()
            .filter(|(node, state)| {
                state.ready && self.view.is_schedulable(node) && !self.view.is_away(node)
            })
            .map(|(node, _)| (self.available(&node, class).0, node))
            .collect();
        rooms.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
        rooms.into_iter().map(|(_, node)| node).collect()
    }

    /// Returns true if a fresh volume may be on another node than the preferred one: no pod has been scheduled for it.
    async fn may_move(&self, request: &v1::CreateVolumeRequest) -> Result<bool, Refusal> {
        let claim = self.claim(request).await?;
        Ok(claim.is_none_or(|claim| selected_node(&claim).is_none()))
    }

    /// Deletes a volume (CSI, `DeleteVolume`). An id of another form is that of no volume.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` while its node is gone and was not given up; else the code of the agent.
    pub async fn delete_volume(
        &self,
        request: v1::DeleteVolumeRequest,
        patience: Duration,
    ) -> Result<v1::DeleteVolumeResponse, Refusal> {
        let id = present("volume_id", &request.volume_id)?;
        let Some(node) = node_of(id) else {
            return Ok(v1::DeleteVolumeResponse {});
        };
        if self.is_given_up(node).await {
            return Ok(v1::DeleteVolumeResponse {});
        }
        self.ask_owner((node, &DELETE_VOLUME, id), &request, patience)
            .await
    }

    /// Returns true if a node is gone and an administrator has given up what it holds: deletes succeed.
    pub(crate) async fn is_given_up(&self, node: &str) -> bool {
        self.view.is_abandoned(node) && self.view.is_gone(node).await == Ok(true)
    }

    /// Grows the device of a volume (CSI, `ControllerExpandVolume`).
    ///
    /// # Errors
    /// `OUT_OF_RANGE` if there is no room: the resizer repeats `RESOURCE_EXHAUSTED` with the same size forever. Else the
    /// code of the agent.
    pub async fn expand_volume(
        &self,
        request: v1::ControllerExpandVolumeRequest,
        patience: Duration,
    ) -> Result<v1::ControllerExpandVolumeResponse, Refusal> {
        let id = present("volume_id", &request.volume_id)?;
        let node = existing("volume", id)?;
        let grown = self.ask_owner((node, &EXPAND_VOLUME, id), &request, patience);
        let grown = grown
            .await
            .map_err(|refusal| refusal.told_as(Code::ResourceExhausted, Code::OutOfRange))?;
        Answerer(node).expanded_volume(&request, grown)
    }

    /// Changes the mutable parameters of a volume (CSI, `ControllerModifyVolume`).
    ///
    /// # Errors
    /// The code of the agent.
    pub async fn modify_volume(
        &self,
        request: v1::ControllerModifyVolumeRequest,
        patience: Duration,
    ) -> Result<v1::ControllerModifyVolumeResponse, Refusal> {
        let id = present("volume_id", &request.volume_id)?;
        let node = existing("volume", id)?;
        self.ask_owner((node, &MODIFY_VOLUME, id), &request, patience)
            .await
    }

    /// Checks whether a volume has capabilities (CSI, `ValidateVolumeCapabilities`).
    ///
    /// # Errors
    /// The code of the agent.
    pub async fn validate_volume(
        &self,
        request: v1::ValidateVolumeCapabilitiesRequest,
        patience: Duration,
    ) -> Result<v1::ValidateVolumeCapabilitiesResponse, Refusal> {
        let id = present("volume_id", &request.volume_id)?;
        let node = existing("volume", id)?;
        let key = prost::Message::encode_to_vec(&request);
        let key = format!("{id} {key:?}");
        self.ask_owner((node, &VALIDATE_VOLUME, &key), &request, patience)
            .await
    }

    /// The capacity of a node for new volumes (CSI, `GetCapacity`), from memory; zero if the node cannot create any now.
    ///
    /// # Errors
    /// `UNAVAILABLE` before the first report of the node: the provisioner repeats that soon, and a capacity of zero after
    /// minutes only.
    pub fn capacity(
        &self,
        request: &v1::GetCapacityRequest,
    ) -> Result<v1::GetCapacityResponse, Refusal> {
        let node = request.accessible_topology.as_ref();
        let node = node.and_then(|topology| topology.segments.get(TOPOLOGY));
        let class = request.parameters.get(CLASS).map(String::as_str);
        let (available, largest) = match node {
            Some(node) if self.view.is_unreported(node) => {
                return Err(Refusal::unavailable(format!(
                    "node {node} has not reported its storage yet"
                )));
            }
            Some(node) => self.available(node, class),
            // The whole cluster: what its nodes have together, and the largest volume that one of them can hold.
            None => self
                .view
                .storages()
                .iter()
                .map(|node| self.available(node, class))
                .fold((0, 0), |(sum, most), (available, largest)| {
                    (i64::saturating_add(sum, available), largest.max(most))
                }),
        };
        Ok(v1::GetCapacityResponse {
            available_capacity: available,
            maximum_volume_size: Some(largest),
            minimum_volume_size: None,
        })
    }

    /// What a node has available of a class, in bytes, and the size of the largest volume.
    fn available(&self, node: &str, class: Option<&str>) -> (i64, i64) {
        let Some(storage) = self.view.storage(node) else {
            return (0, 0);
        };
        let Some(state) = storage.class(class) else {
            return (0, 0);
        };
        if !state.ready || self.view.is_lost(node) || self.view.is_abandoned(node) {
            return (0, 0);
        }
        let default = storage.class(None).map(|class| class.name.as_str());
        let reserved = self
            .watch
            .reservations()
            .of(node, |named| named.or(default) == Some(state.name.as_str()));
        let left = |bytes: i64| bytes.saturating_sub(reserved).max(0);
        (left(state.available), left(state.maximum_volume))
    }
}

/// The nodes that topologies name.
fn nodes(topologies: &[v1::Topology]) -> Vec<String> {
    let named = topologies
        .iter()
        .filter_map(|topology| topology.segments.get(TOPOLOGY).cloned());
    named.collect()
}

/// The topology of a node.
fn topology(node: &str) -> v1::Topology {
    v1::Topology {
        segments: [(TOPOLOGY.to_owned(), node.to_owned())].into(),
    }
}

/// The id of the source of a new volume, if it has one.
fn source(request: &v1::CreateVolumeRequest) -> Result<Option<&str>, Refusal> {
    let Some(source) = &request.volume_content_source else {
        return Ok(None);
    };
    match &source.r#type {
        Some(Type::Snapshot(snapshot)) => present(
            "volume_content_source.snapshot.snapshot_id",
            &snapshot.snapshot_id,
        )
        .map(Some),
        Some(Type::Volume(volume)) => {
            present("volume_content_source.volume.volume_id", &volume.volume_id).map(Some)
        }
        None => Err(Refusal::invalid("volume_content_source.type is missing")),
    }
}

/// The value of a required field.
///
/// # Errors
/// `INVALID_ARGUMENT` naming it.
pub(crate) fn present<'a>(field: &str, value: &'a str) -> Result<&'a str, Refusal> {
    if value.is_empty() {
        return Err(Refusal::invalid(format!("{field} is missing")));
    }
    Ok(value)
}

/// The node of an id.
///
/// # Errors
/// `NOT_FOUND` for an id that cannot exist.
pub(crate) fn existing<'a>(what: &str, id: &'a str) -> Result<&'a str, Refusal> {
    node_of(id).ok_or_else(|| Refusal::new(Code::NotFound, format!("{what} {id} does not exist")))
}
