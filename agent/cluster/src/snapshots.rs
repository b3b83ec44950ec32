//! The snapshots and group snapshots of the cluster.

use std::{collections::BTreeSet, time::Duration};

use drumlin_crd::names::node_of;
use drumlin_proto::csi::v1;
use tonic::Code;

use crate::{
    answers::Answerer,
    calls::Failure,
    front::{Front, end_of_waiting},
    method::{
        CREATE_GROUP_SNAPSHOT, CREATE_SNAPSHOT, DELETE_GROUP_SNAPSHOT, DELETE_SNAPSHOT,
        GET_GROUP_SNAPSHOT, LIST_SNAPSHOTS,
    },
    refusal::Refusal,
    volumes::{existing, present},
};

impl Front {
    /// Creates a snapshot (CSI, `CreateSnapshot`).
    ///
    /// # Errors
    /// `INTERNAL` if there is no room: the snapshotter repeats `RESOURCE_EXHAUSTED` forever, and a snapshot that is being
    /// created cannot be deleted. Else the code of the agent.
    pub async fn create_snapshot(
        &self,
        request: v1::CreateSnapshotRequest,
        patience: Duration,
    ) -> Result<v1::CreateSnapshotResponse, Refusal> {
        let name = present("name", &request.name)?;
        let source = present("source_volume_id", &request.source_volume_id)?;
        let node = existing("volume", source)?;
        let created = self.ask_owner((node, &CREATE_SNAPSHOT, name), &request, patience);
        let created = created.await.map_err(final_without_room)?;
        Answerer(node).created_snapshot(&request, created)
    }

    /// Deletes a snapshot (CSI, `DeleteSnapshot`). An id of another form is that of no snapshot.
    ///
    /// # Errors
    /// The code of the agent.
    pub async fn delete_snapshot(
        &self,
        request: v1::DeleteSnapshotRequest,
        patience: Duration,
    ) -> Result<v1::DeleteSnapshotResponse, Refusal> {
        let id = present("snapshot_id", &request.snapshot_id)?;
        let Some(node) = node_of(id) else {
            return Ok(v1::DeleteSnapshotResponse {});
        };
        if self.is_given_up(node).await {
            return Ok(v1::DeleteSnapshotResponse {});
        }
        self.ask_owner((node, &DELETE_SNAPSHOT, id), &request, patience)
            .await
    }

    /// Lists the snapshots of a volume, or a snapshot by its id (CSI, `ListSnapshots`); without either those of all nodes,
    /// node by node.
    ///
    /// # Errors
    /// `ABORTED` for a token that is not valid any more; else the code of the agent.
    pub async fn list_snapshots(
        &self,
        request: v1::ListSnapshotsRequest,
        patience: Duration,
    ) -> Result<v1::ListSnapshotsResponse, Refusal> {
        let about = [&request.snapshot_id, &request.source_volume_id];
        if let Some(id) = about.into_iter().find(|id| !id.is_empty()) {
            let Some(node) = node_of(id) else {
                return Ok(v1::ListSnapshotsResponse::default());
            };
            return match self.list_on(node, &request, patience).await {
                // A node that is gone has none that could be used.
                Err(Failure::NodeGone) => Ok(v1::ListSnapshotsResponse::default()),
                listed => {
                    let listed = listed.map_err(|failure| Refusal::of(node, failure))?;
                    Answerer(node).listed_snapshots(&request, listed)
                }
            };
        }
        self.list_all(request, patience).await
    }

    async fn list_on(
        &self,
        node: &str,
        request: &v1::ListSnapshotsRequest,
        patience: Duration,
    ) -> Result<v1::ListSnapshotsResponse, Failure> {
        let key = format!("{node} {:?}", prost::Message::encode_to_vec(request));
        let deadline = end_of_waiting(patience);
        self.ask((node, &LIST_SNAPSHOTS, &key), request, deadline)
            .await
    }

    /// A page of the snapshots of all nodes. A token is a node, and the token of its agent.
    async fn list_all(
        &self,
        request: v1::ListSnapshotsRequest,
        patience: Duration,
    ) -> Result<v1::ListSnapshotsResponse, Refusal> {
        let mut nodes: Vec<String> = self.view.storages();
        nodes.sort();
        let (from, token) = match request.starting_token.split_once('\n') {
            Some((node, token)) => (node, token),
            None if request.starting_token.is_empty() => ("", ""),
            None => {
                return Err(Refusal::new(
                    Code::Aborted,
                    "starting_token is not valid; list from the beginning",
                ));
            }
        };
        let mut nodes = nodes
            .into_iter()
            .filter(|node| node.as_str() >= from)
            .peekable();
        let Some(node) = nodes.next() else {
            return Ok(v1::ListSnapshotsResponse::default());
        };
        let own = v1::ListSnapshotsRequest {
            starting_token: if node == from {
                token.to_owned()
            } else {
                String::new()
            },
            ..request
        };
        let page = self.list_on(&node, &own, patience).await;
        let page = page.map_err(|failure| Refusal::of(&node, failure))?;
        let mut page = Answerer(&node).listed_snapshots(&own, page)?;
        let next = if page.next_token.is_empty() {
            nodes.peek().map(|next| format!("{next}\n"))
        } else {
            Some(format!("{node}\n{}", page.next_token))
        };
        page.next_token = next.unwrap_or_default();
        Ok(page)
    }

    /// Creates a group snapshot of volumes that are on one node (CSI, `CreateVolumeGroupSnapshot`).
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` naming volumes and nodes if they are on several; `INTERNAL` if there is no room, as for a
    /// snapshot; else the code of the agent.
    pub async fn create_group_snapshot(
        &self,
        request: v1::CreateVolumeGroupSnapshotRequest,
        patience: Duration,
    ) -> Result<v1::CreateVolumeGroupSnapshotResponse, Refusal> {
        let name = present("name", &request.name)?;
        if request.source_volume_ids.is_empty() {
            return Err(Refusal::invalid("source_volume_ids is missing"));
        }
        let mut nodes = BTreeSet::new();
        for id in &request.source_volume_ids {
            nodes.insert(existing("volume", id)?);
        }
        let mut nodes = nodes.into_iter();
        let (Some(node), None) = (nodes.next(), nodes.next()) else {
            return Err(Refusal::new(
                Code::FailedPrecondition,
                format!(
                    "the volumes are on several nodes ({}); a group snapshot is a point in time of one node",
                    request.source_volume_ids.join(", ")
                ),
            ));
        };
        let created = self.ask_owner((node, &CREATE_GROUP_SNAPSHOT, name), &request, patience);
        let created = created.await.map_err(final_without_room)?;
        Answerer(node).created_group_snapshot(&request, created)
    }

    /// Deletes a group snapshot with its members (CSI, `DeleteVolumeGroupSnapshot`).
    ///
    /// # Errors
    /// The code of the agent.
    pub async fn delete_group_snapshot(
        &self,
        request: v1::DeleteVolumeGroupSnapshotRequest,
        patience: Duration,
    ) -> Result<v1::DeleteVolumeGroupSnapshotResponse, Refusal> {
        let id = present("group_snapshot_id", &request.group_snapshot_id)?;
        let Some(node) = node_of(id) else {
            return Ok(v1::DeleteVolumeGroupSnapshotResponse {});
        };
        if self.is_given_up(node).await {
            return Ok(v1::DeleteVolumeGroupSnapshotResponse {});
        }
        self.ask_owner((node, &DELETE_GROUP_SNAPSHOT, id), &request, patience)
            .await
    }

    /// A group snapshot with its members (CSI, `GetVolumeGroupSnapshot`).
    ///
    /// # Errors
    /// The code of the agent.
    pub async fn get_group_snapshot(
        &self,
        request: v1::GetVolumeGroupSnapshotRequest,
        patience: Duration,
    ) -> Result<v1::GetVolumeGroupSnapshotResponse, Refusal> {
        let id = present("group_snapshot_id", &request.group_snapshot_id)?;
        let node = existing("group snapshot", id)?;
        let key = format!("{id} {:?}", prost::Message::encode_to_vec(&request));
        let found = self.ask_owner((node, &GET_GROUP_SNAPSHOT, &key), &request, patience);
        Answerer(node).found_group_snapshot(&request, found.await?)
    }
}

fn final_without_room(refusal: Refusal) -> Refusal {
    refusal.told_as(Code::ResourceExhausted, Code::Internal)
}
