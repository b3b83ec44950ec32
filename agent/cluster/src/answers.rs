//! Whether an answer is one to what was asked.
//!
//! **Invariant:** an agent speaks for its own node. Whoever has a node's token can answer the calls to that node as they like,
//! but no answer makes the front tell a sidecar of a volume or snapshot of another node or class, of another source, or of
//! another size than it asked for.

use std::collections::BTreeSet;

use drumlin_crd::names::{class_of, node_of};
use drumlin_proto::csi::v1::{self, CapacityRange};
use tonic::Code;

use crate::{refusal::Refusal, volumes::TOPOLOGY};

/// The node that has answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answerer<'a>(pub(crate) &'a str);

impl Answerer<'_> {
    /// A volume of this node, of the class and the size that were asked for, and with that content.
    pub(crate) fn created_volume(
        self,
        request: &v1::CreateVolumeRequest,
        response: v1::CreateVolumeResponse,
    ) -> Result<v1::CreateVolumeResponse, Refusal> {
        let Some(volume) = &response.volume else {
            return Err(self.untrue("no volume"));
        };
        let id = &volume.volume_id;
        self.owns("volume_id", id)?;
        let class = request.parameters.get("class");
        if class.is_some_and(|class| class_of(id) != Some(class)) {
            return Err(self.untrue(&format!("volume_id {id}, which is of another class")));
        }
        self.is_place("volume.accessible_topology", &volume.accessible_topology)?;
        self.is_within(request.capacity_range.as_ref(), volume.capacity_bytes)?;
        if volume.content_source != request.volume_content_source {
            return Err(self.untrue("another content_source than asked for"));
        }
        Ok(response)
    }

    /// A size that was asked for.
    pub(crate) fn expanded_volume(
        self,
        request: &v1::ControllerExpandVolumeRequest,
        response: v1::ControllerExpandVolumeResponse,
    ) -> Result<v1::ControllerExpandVolumeResponse, Refusal> {
        self.is_within(request.capacity_range.as_ref(), response.capacity_bytes)?;
        Ok(response)
    }

    /// A snapshot of this node, of the volume that was asked for.
    pub(crate) fn created_snapshot(
        self,
        request: &v1::CreateSnapshotRequest,
        response: v1::CreateSnapshotResponse,
    ) -> Result<v1::CreateSnapshotResponse, Refusal> {
        let Some(snapshot) = &response.snapshot else {
            return Err(self.untrue("no snapshot"));
        };
        self.is_snapshot(snapshot)?;
        if snapshot.source_volume_id != request.source_volume_id {
            return Err(self.untrue(&format!(
                "source_volume_id {}, which is not that of the request",
                snapshot.source_volume_id
            )));
        }
        Ok(response)
    }

    /// Snapshots of this node, and what was asked for.
    pub(crate) fn listed_snapshots(
        self,
        request: &v1::ListSnapshotsRequest,
        response: v1::ListSnapshotsResponse,
    ) -> Result<v1::ListSnapshotsResponse, Refusal> {
        for entry in &response.entries {
            let Some(snapshot) = &entry.snapshot else {
                return Err(self.untrue("an entry without snapshot"));
            };
            self.is_snapshot(snapshot)?;
            for (wanted, is) in [
                (&request.snapshot_id, &snapshot.snapshot_id),
                (&request.source_volume_id, &snapshot.source_volume_id),
            ] {
                if !wanted.is_empty() && is != wanted {
                    return Err(self.untrue(&format!("id {is} when asked for {wanted}")));
                }
            }
        }
        Ok(response)
    }

    /// A group snapshot of this node, with a member for each volume that was asked for.
    pub(crate) fn created_group_snapshot(
        self,
        request: &v1::CreateVolumeGroupSnapshotRequest,
        response: v1::CreateVolumeGroupSnapshotResponse,
    ) -> Result<v1::CreateVolumeGroupSnapshotResponse, Refusal> {
        let group = self.group_snapshot(response.group_snapshot.as_ref())?;
        let members = group.snapshots.iter();
        let members: BTreeSet<_> = members.map(|one| one.source_volume_id.as_str()).collect();
        let wanted = request.source_volume_ids.iter();
        let wanted: BTreeSet<_> = wanted.map(String::as_str).collect();
        if members != wanted || group.snapshots.len() != wanted.len() {
            return Err(self.untrue("other members than asked for"));
        }
        Ok(response)
    }

    /// The group snapshot that was asked for, of this node.
    pub(crate) fn found_group_snapshot(
        self,
        request: &v1::GetVolumeGroupSnapshotRequest,
        response: v1::GetVolumeGroupSnapshotResponse,
    ) -> Result<v1::GetVolumeGroupSnapshotResponse, Refusal> {
        let group = self.group_snapshot(response.group_snapshot.as_ref())?;
        let (is, wanted) = (&group.group_snapshot_id, &request.group_snapshot_id);
        if is != wanted {
            return Err(self.untrue(&format!("group_snapshot_id {is} when asked for {wanted}")));
        }
        Ok(response)
    }

    fn group_snapshot(
        self,
        group: Option<&v1::VolumeGroupSnapshot>,
    ) -> Result<&v1::VolumeGroupSnapshot, Refusal> {
        let group = group.ok_or_else(|| self.untrue("no group snapshot"))?;
        let id = &group.group_snapshot_id;
        self.owns("group_snapshot_id", id)?;
        for member in &group.snapshots {
            self.is_snapshot(member)?;
            if member.group_snapshot_id != *id {
                return Err(self.untrue(&format!("a member of another group snapshot than {id}")));
            }
        }
        Ok(group)
    }

    /// A snapshot of this node. That of a volume that was deleted may name no source.
    fn is_snapshot(self, snapshot: &v1::Snapshot) -> Result<(), Refusal> {
        let (id, source) = (&snapshot.snapshot_id, &snapshot.source_volume_id);
        self.owns("snapshot_id", id)?;
        self.is_place(
            "snapshot.accessible_topology",
            &snapshot.accessible_topology,
        )?;
        if source.is_empty() {
            return Ok(());
        }
        self.owns("source_volume_id", source)?;
        if class_of(id) == class_of(source) {
            return Ok(());
        }
        Err(self.untrue(&format!(
            "snapshot_id {id}, which is of another class than its source"
        )))
    }

    /// Refuses the id of an object of another node.
    fn owns(self, field: &str, id: &str) -> Result<(), Refusal> {
        if node_of(id) == Some(self.0) && class_of(id).is_some() {
            return Ok(());
        }
        Err(self.untrue(&format!("{field} {id}, which is not of that node")))
    }

    /// Refuses any place but this node.
    fn is_place(self, field: &str, places: &[v1::Topology]) -> Result<(), Refusal> {
        let is_here = |place: &v1::Topology| {
            place.segments.len() == 1
                && place
                    .segments
                    .get(TOPOLOGY)
                    .is_some_and(|node| node == self.0)
        };
        if !places.is_empty() && places.iter().all(is_here) {
            return Ok(());
        }
        Err(self.untrue(&format!("{field}, which is not that node alone")))
    }

    /// Refuses a size that was not asked for.
    fn is_within(self, range: Option<&CapacityRange>, bytes: i64) -> Result<(), Refusal> {
        let (least, most) = range.map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
        if bytes >= least.max(1) && (most == 0 || bytes <= most) {
            return Ok(());
        }
        Err(self.untrue(&format!("capacity_bytes {bytes}, which was not asked for")))
    }

    fn untrue(self, what: &str) -> Refusal {
        Refusal::new(
            Code::Internal,
            format!("the agent of node {} has answered with {what}", self.0),
        )
    }
}

#[cfg(test)]
mod tests {
    use drumlin_proto::csi::v1::volume_content_source::{SnapshotSource, Type};

    use super::*;

    const AGENT: Answerer<'static> = Answerer("a");

    fn at(node: &str) -> Vec<v1::Topology> {
        let segments = [(TOPOLOGY.to_owned(), node.to_owned())].into();
        vec![v1::Topology { segments }]
    }

    fn refusal<T: std::fmt::Debug>(answer: Result<T, Refusal>) -> String {
        let refusal = answer.unwrap_err();
        assert_eq!(refusal.code, Code::Internal, "{refusal}");
        refusal.message
    }

    fn asked_volume() -> v1::CreateVolumeRequest {
        v1::CreateVolumeRequest {
            name: "pvc-1".to_owned(),
            parameters: [("class".to_owned(), "fast".to_owned())].into(),
            capacity_range: Some(CapacityRange {
                required_bytes: 10,
                limit_bytes: 20,
            }),
            volume_content_source: Some(content("a/fast/snapshot")),
            ..v1::CreateVolumeRequest::default()
        }
    }

    fn content(snapshot: &str) -> v1::VolumeContentSource {
        v1::VolumeContentSource {
            r#type: Some(Type::Snapshot(SnapshotSource {
                snapshot_id: snapshot.to_owned(),
            })),
        }
    }

    fn made_volume(change: impl FnOnce(&mut v1::Volume)) -> v1::CreateVolumeResponse {
        let mut volume = v1::Volume {
            volume_id: "a/fast/volume".to_owned(),
            capacity_bytes: 16,
            content_source: Some(content("a/fast/snapshot")),
            accessible_topology: at("a"),
            ..v1::Volume::default()
        };
        change(&mut volume);
        v1::CreateVolumeResponse {
            volume: Some(volume),
        }
    }

    type VolumeChange = fn(&mut v1::Volume);

    /// What no volume of the request is, and the reason.
    const UNTRUE_VOLUMES: [(&str, VolumeChange); 11] = [
        ("not of that node", |volume| {
            volume.volume_id = "b/fast/volume".to_owned();
        }),
        ("not of that node", |volume| {
            volume.volume_id = "aa/fast/volume".to_owned();
        }),
        ("not of that node", |volume| {
            volume.volume_id = "volume".to_owned();
        }),
        ("another class", |volume| {
            volume.volume_id = "a/slow/volume".to_owned();
        }),
        ("not that node alone", |volume| {
            volume.accessible_topology = at("b");
        }),
        ("not that node alone", |volume| {
            volume.accessible_topology.extend(at("b"));
        }),
        ("not that node alone", |volume| {
            volume.accessible_topology.clear();
        }),
        ("not asked for", |volume| volume.capacity_bytes = 9),
        ("not asked for", |volume| volume.capacity_bytes = 21),
        ("content_source", |volume| {
            volume.content_source = Some(content("b/fast/snapshot"));
        }),
        ("content_source", |volume| volume.content_source = None),
    ];

    #[test]
    fn a_volume_is_that_of_the_request_on_the_node_that_was_asked() {
        let asked = asked_volume();
        let answer = made_volume(|_| {});
        assert_eq!(
            AGENT.created_volume(&asked, answer.clone()).unwrap(),
            answer
        );
        for (wanted, change) in UNTRUE_VOLUMES {
            let refused = refusal(AGENT.created_volume(&asked, made_volume(change)));
            assert!(refused.contains(wanted), "{refused}");
        }
        let none = v1::CreateVolumeResponse::default();
        assert!(refusal(AGENT.created_volume(&asked, none)).contains("no volume"));
        // Whose class is left to the node is of any.
        let asked = v1::CreateVolumeRequest {
            parameters: std::collections::BTreeMap::new(),
            ..asked
        };
        let slow = made_volume(|volume| volume.volume_id = "a/slow/volume".to_owned());
        AGENT.created_volume(&asked, slow).unwrap();
    }

    #[test]
    fn a_volume_has_grown_as_far_as_was_asked() {
        let asked = v1::ControllerExpandVolumeRequest {
            capacity_range: asked_volume().capacity_range,
            ..v1::ControllerExpandVolumeRequest::default()
        };
        for (bytes, is_taken) in [(0, false), (9, false), (10, true), (20, true), (21, false)] {
            let answer = v1::ControllerExpandVolumeResponse {
                capacity_bytes: bytes,
                node_expansion_required: true,
            };
            let taken = AGENT.expanded_volume(&asked, answer);
            assert_eq!(taken.is_ok(), is_taken, "{bytes}");
        }
    }

    fn snapshot(change: impl FnOnce(&mut v1::Snapshot)) -> v1::Snapshot {
        let mut snapshot = v1::Snapshot {
            snapshot_id: "a/fast/snapshot".to_owned(),
            source_volume_id: "a/fast/volume".to_owned(),
            group_snapshot_id: "a/fast/group".to_owned(),
            accessible_topology: at("a"),
            ..v1::Snapshot::default()
        };
        change(&mut snapshot);
        snapshot
    }

    type Change = fn(&mut v1::Snapshot);

    /// What no snapshot of the node is.
    const UNTRUE: [Change; 4] = [
        |snapshot| snapshot.snapshot_id = "b/fast/snapshot".to_owned(),
        |snapshot| snapshot.snapshot_id = "a/slow/snapshot".to_owned(),
        |snapshot| snapshot.source_volume_id = "b/fast/volume".to_owned(),
        |snapshot| snapshot.accessible_topology = at("b"),
    ];

    #[test]
    fn a_snapshot_is_that_of_the_volume_of_the_request() {
        let asked = v1::CreateSnapshotRequest {
            source_volume_id: "a/fast/volume".to_owned(),
            ..v1::CreateSnapshotRequest::default()
        };
        let answer = |snapshot| v1::CreateSnapshotResponse { snapshot };
        let made = answer(Some(snapshot(|_| {})));
        AGENT.created_snapshot(&asked, made).unwrap();
        let another: Change = |snapshot| snapshot.source_volume_id = "a/fast/another".to_owned();
        for change in UNTRUE.into_iter().chain([another]) {
            let made = answer(Some(snapshot(change)));
            refusal(AGENT.created_snapshot(&asked, made));
        }
        refusal(AGENT.created_snapshot(&asked, answer(None)));
    }

    #[test]
    fn a_list_has_only_what_was_asked_for_of_the_node() {
        let list = |snapshot| v1::ListSnapshotsResponse {
            entries: vec![v1::list_snapshots_response::Entry {
                snapshot: Some(snapshot),
            }],
            next_token: String::new(),
        };
        let all = v1::ListSnapshotsRequest::default();
        let by_id = v1::ListSnapshotsRequest {
            snapshot_id: "a/fast/snapshot".to_owned(),
            ..v1::ListSnapshotsRequest::default()
        };
        let by_source = v1::ListSnapshotsRequest {
            source_volume_id: "a/fast/volume".to_owned(),
            ..v1::ListSnapshotsRequest::default()
        };
        let sourceless = snapshot(|snapshot| snapshot.source_volume_id = String::new());
        AGENT.listed_snapshots(&by_id, list(sourceless)).unwrap();
        for asked in [&all, &by_id, &by_source] {
            let listed = list(snapshot(|_| {}));
            AGENT.listed_snapshots(asked, listed).unwrap();
            let none = v1::ListSnapshotsResponse::default();
            AGENT.listed_snapshots(asked, none).unwrap();
            for change in UNTRUE {
                refusal(AGENT.listed_snapshots(asked, list(snapshot(change))));
            }
        }
        let another = snapshot(|snapshot| snapshot.snapshot_id = "a/fast/another".to_owned());
        AGENT.listed_snapshots(&all, list(another.clone())).unwrap();
        refusal(AGENT.listed_snapshots(&by_id, list(another)));
        let another = snapshot(|snapshot| snapshot.source_volume_id = "a/fast/another".to_owned());
        AGENT.listed_snapshots(&all, list(another.clone())).unwrap();
        refusal(AGENT.listed_snapshots(&by_source, list(another)));
    }

    #[test]
    fn a_group_snapshot_has_a_member_for_each_volume_of_the_request() {
        let asked = v1::CreateVolumeGroupSnapshotRequest {
            source_volume_ids: vec!["a/fast/volume".to_owned(), "a/fast/second".to_owned()],
            ..v1::CreateVolumeGroupSnapshotRequest::default()
        };
        let second = || snapshot(|one| one.source_volume_id = "a/fast/second".to_owned());
        let group = |snapshots: Vec<v1::Snapshot>| v1::CreateVolumeGroupSnapshotResponse {
            group_snapshot: Some(v1::VolumeGroupSnapshot {
                group_snapshot_id: "a/fast/group".to_owned(),
                snapshots,
                ..v1::VolumeGroupSnapshot::default()
            }),
        };
        let taken = |snapshots| AGENT.created_group_snapshot(&asked, group(snapshots));
        taken(vec![second(), snapshot(|_| {})]).unwrap();
        refusal(taken(vec![second()]));
        refusal(taken(vec![second(), second()]));
        refusal(taken(vec![second(), snapshot(|_| {}), second()]));
        let of_another: Change = |one| one.group_snapshot_id = "a/fast/other".to_owned();
        for change in UNTRUE.into_iter().chain([of_another]) {
            refusal(taken(vec![second(), snapshot(change)]));
        }
        let mut foreign = group(vec![second(), snapshot(|_| {})]);
        foreign.group_snapshot.as_mut().unwrap().group_snapshot_id = "b/fast/group".to_owned();
        refusal(AGENT.created_group_snapshot(&asked, foreign));
    }

    #[test]
    fn the_group_snapshot_that_is_found_is_the_one_that_was_asked_for() {
        let asked = v1::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: "a/fast/group".to_owned(),
            ..v1::GetVolumeGroupSnapshotRequest::default()
        };
        let found = |id: &str| v1::GetVolumeGroupSnapshotResponse {
            group_snapshot: Some(v1::VolumeGroupSnapshot {
                group_snapshot_id: id.to_owned(),
                ..v1::VolumeGroupSnapshot::default()
            }),
        };
        let taken = |id| AGENT.found_group_snapshot(&asked, found(id));
        taken("a/fast/group").unwrap();
        refusal(taken("a/fast/other"));
        refusal(taken("b/fast/group"));
    }
}
