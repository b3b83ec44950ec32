//! Whether what was made is still there: one list for all, every ten minutes.
//!
//! Nothing is changed here: what looks wrong is looked at by its own pass, which nobody else's work can cross.

use std::collections::{HashMap, HashSet};

use drumlin_crd::{ObjectKey, VolumeGroupStatus};
use drumlin_proto::{csi::v1, volumegroup::ListVolumeGroupsRequest};
use tonic::Code;

use crate::{
    client::{Failure, SHORT, call},
    engine::Engine,
    kinds::{
        membership::state,
        volume::{abnormal, size},
    },
    record::{Body, Record},
};

impl Engine {
    /// Looks for volumes, snapshots and groups that were there and are gone, or came back, and for mounts that are missing.
    pub(crate) async fn verify(&self) -> Result<(), Failure> {
        let keys = self.shared.keys_of(|record| {
            record.is_begun()
                && record.drumlin.orphan_since.is_none()
                && !record.drumlin.destroyed
                && !record.is_paused()
        });
        if keys.is_empty() {
            return Ok(());
        }
        // Before the lists are made: what is made after that is in none of them, and is not missed.
        let records: Vec<Record> = keys
            .iter()
            .filter_map(|key| self.shared.record(key))
            .collect();
        let volumes = self.volumes().await?;
        let snapshots = self.snapshots().await?;
        let is_group = |record: &Record| matches!(record.body, Body::Group { .. });
        let groups = if records.iter().any(is_group) {
            self.groups().await?
        } else {
            HashMap::new()
        };
        for record in records {
            let key = record.key();
            match &record.body {
                Body::Volume { status, .. } => {
                    let Some(handle) = &status.volume_handle else {
                        continue;
                    };
                    if is_otherwise(&record, volumes.get(handle)) {
                        self.doubt(&key);
                    } else if let Some(path) = &status.mount_path {
                        self.verify_mount(&key, handle, path).await?;
                    }
                }
                Body::Snapshot { status, .. } => {
                    let handle = status.snapshot_handle.as_ref();
                    if handle
                        .is_some_and(|handle| snapshots.contains(handle) == record.drumlin.lost)
                    {
                        self.doubt(&key);
                    }
                }
                Body::Group { status, .. } => {
                    let group = status.group_handle.as_ref();
                    if group.is_some_and(|handle| has_other_members(status, groups.get(handle))) {
                        self.doubt(&key);
                    }
                }
                Body::GroupSnapshot { status, .. } => {
                    let members = status.members.iter();
                    let mut handles = members.filter_map(|member| member.snapshot_handle.as_ref());
                    let is_lost = handles.any(|handle| !snapshots.contains(handle));
                    if status.group_snapshot_handle.is_some() && is_lost != record.drumlin.lost {
                        self.doubt(&key);
                    }
                }
            }
        }
        Ok(())
    }

    fn doubt(&self, key: &ObjectKey) {
        self.shared.doubt(key);
        self.reset(key);
    }

    async fn volumes(&self) -> Result<HashMap<String, v1::list_volumes_response::Entry>, Failure> {
        let mut volumes = HashMap::new();
        let mut request = v1::ListVolumesRequest::default();
        loop {
            let answer = call(
                "ListVolumes",
                SHORT,
                self.client.controller().list_volumes(request.clone()),
            )
            .await?;
            volumes.extend(answer.entries.into_iter().filter_map(|entry| {
                let id = entry.volume.as_ref()?.volume_id.clone();
                Some((id, entry))
            }));
            if answer.next_token.is_empty() {
                return Ok(volumes);
            }
            request.starting_token = answer.next_token;
        }
    }

    async fn snapshots(&self) -> Result<HashSet<String>, Failure> {
        let mut snapshots = HashSet::new();
        let mut request = v1::ListSnapshotsRequest::default();
        loop {
            let answer = call(
                "ListSnapshots",
                SHORT,
                self.client.controller().list_snapshots(request.clone()),
            )
            .await?;
            let ids = answer.entries.into_iter();
            snapshots.extend(ids.filter_map(|entry| Some(entry.snapshot?.snapshot_id)));
            if answer.next_token.is_empty() {
                return Ok(snapshots);
            }
            request.starting_token = answer.next_token;
        }
    }

    /// All groups, each with the ids of its volumes.
    async fn groups(&self) -> Result<HashMap<String, HashSet<String>>, Failure> {
        let mut groups = HashMap::new();
        let mut request = ListVolumeGroupsRequest::default();
        loop {
            let mut client = self.client.groups();
            let answer = client.list_volume_groups(request.clone());
            let answer = call("ListVolumeGroups", SHORT, answer).await?;
            let found = answer.entries.into_iter();
            groups.extend(found.filter_map(|entry| {
                let group = entry.volume_group?;
                let volumes = group.volumes.into_iter();
                let ids = volumes.map(|volume| volume.volume_id).collect();
                Some((group.volume_group_id, ids))
            }));
            if answer.next_token.is_empty() {
                return Ok(groups);
            }
            request.starting_token = answer.next_token;
        }
    }

    async fn verify_mount(&self, key: &ObjectKey, handle: &str, path: &str) -> Result<(), Failure> {
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: handle.to_owned(),
            volume_path: path.to_owned(),
            staging_target_path: String::new(),
        };
        match call(
            "NodeGetVolumeStats",
            SHORT,
            self.client.node().node_get_volume_stats(request),
        )
        .await
        {
            Err(failure) if failure.code == Code::NotFound => {
                tracing::warn!(object = %key, "mount is gone; it is made again");
                self.doubt(key);
                Ok(())
            }
            // One mount that cannot be looked at hides no other.
            Err(failure) if failure.code != Code::Unavailable => Ok(()),
            Err(failure) => Err(failure),
            Ok(_) => Ok(()),
        }
    }
}

/// Whether a group has other members than its record says, or is gone.
fn has_other_members(status: &VolumeGroupStatus, found: Option<&HashSet<String>>) -> bool {
    let members = status.members.iter();
    let known = members
        .filter(|member| [state::JOINED, state::FOREIGN].contains(&member.state.as_str()))
        .filter_map(|member| member.volume_handle.clone());
    found != Some(&known.collect())
}

/// Whether a volume is not as its record has it.
fn is_otherwise(record: &Record, found: Option<&v1::list_volumes_response::Entry>) -> bool {
    let Body::Volume { status, .. } = &record.body else {
        return false;
    };
    let Some(found) = found else {
        return !record.drumlin.lost;
    };
    let capacity = found.volume.as_ref().map(|volume| volume.capacity_bytes);
    let condition = found
        .status
        .as_ref()
        .and_then(|status| status.volume_condition.clone());
    let drift = record
        .condition("Drifted")
        .map(|drifted| drifted.message.clone());
    record.drumlin.lost
        || capacity.is_some_and(|bytes| bytes > 0 && Some(size(bytes)) != status.capacity)
        || condition.and_then(abnormal) != drift
}
