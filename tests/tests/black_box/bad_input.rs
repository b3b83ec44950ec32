//! Ten thousand requests that nobody would send: no panic, no INTERNAL, no file outside the agent's directories.

use std::fs;

use drumlin_proto::csi::{
    v0,
    v1::{
        CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest,
        ControllerModifyVolumeRequest, ControllerPublishVolumeRequest,
        ControllerUnpublishVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest,
        DeleteSnapshotRequest, DeleteVolumeRequest, GetCapacityRequest, GetSnapshotRequest,
        ListSnapshotsRequest, ListVolumesRequest, NodeExpandVolumeRequest,
        NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
        NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, ProbeRequest, Topology,
        TopologyRequirement, ValidateVolumeCapabilitiesRequest, VolumeCapability,
        VolumeContentSource,
        volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume},
    },
};
use drumlin_tests::{
    agent::Agent,
    programs::run,
    requests::{from_snapshot, from_volume, mounted, raw, snapshot, validate_capabilities},
};
use prost::Message;
use tonic::{Code, Status};

use crate::{
    dialect::{controller_v0, node_v0},
    helpers::{ok, text, volume},
};

const REQUESTS: usize = 2_500;

/// Numbers that follow from a seed, so that a failure can be had again.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// Makes requests of parts that are right, wrong and hostile.
struct Hostile {
    random: Random,
    ids: Vec<String>,
    paths: Vec<String>,
}

impl Hostile {
    fn text(&mut self) -> String {
        let words = [
            "",
            "a",
            "..",
            "../../etc/passwd",
            "/",
            "a\nb",
            "a\0b",
            "%s%n",
            "\u{202e}",
            "größe",
            "'; rm -rf /",
            "-rf",
            "\u{feff}",
        ];
        match self.random.below(12) {
            0 => "x".repeat(self.random.below(70_000)),
            1 => "\u{10ffff}".repeat(40),
            _ => self.random.pick(&words).to_owned(),
        }
    }

    fn id(&mut self) -> String {
        let ids = self.ids.clone();
        if self.random.below(3) == 0 {
            self.text()
        } else {
            self.random.pick(&ids)
        }
    }

    fn path(&mut self) -> String {
        let paths = self.paths.clone();
        if self.random.below(3) == 0 {
            self.text()
        } else {
            self.random.pick(&paths)
        }
    }

    fn number(&mut self) -> i64 {
        self.random.pick(&[
            0,
            1,
            -1,
            4096,
            1 << 20,
            (1 << 20) + 1,
            1 << 40,
            i64::MAX,
            i64::MIN,
        ])
    }

    fn range(&mut self) -> Option<CapacityRange> {
        let (required_bytes, limit_bytes) = (self.number(), self.number());
        (self.random.below(3) > 0).then_some(CapacityRange {
            required_bytes,
            limit_bytes,
        })
    }

    fn map(&mut self) -> std::collections::BTreeMap<String, String> {
        let keys = [
            "class",
            "protected",
            "label.a",
            "label.",
            "csi.storage.k8s.io/x",
            "topology.drumlin.dev/node",
            "drumlin.dev/x",
        ];
        (0..self.random.below(3))
            .map(|_| {
                let key = if self.random.below(2) == 0 {
                    self.text()
                } else {
                    self.random.pick(&keys).to_owned()
                };
                let value = if self.random.below(2) == 0 {
                    self.text()
                } else {
                    self.random.pick(&["default", "true", "node-a"]).to_owned()
                };
                (key, value)
            })
            .collect()
    }

    fn capability(&mut self) -> VolumeCapability {
        let access_type = match self.random.below(6) {
            0 => None,
            1 => Some(AccessType::Block(BlockVolume {})),
            2 => return mounted("ext4"),
            3 => return raw(),
            _ => Some(AccessType::Mount(MountVolume {
                fs_type: self
                    .random
                    .pick(&["", "ext4", "xfs", "ntfs", "../x"])
                    .to_owned(),
                mount_flags: (0..self.random.below(3))
                    .map(|_| {
                        self.random
                            .pick(&["ro", "noatime", "loop", "dev=/etc", "a\0b", ""])
                            .to_owned()
                    })
                    .collect(),
                volume_mount_group: self
                    .random
                    .pick(&["", "0", "-1", "wheel", "4294967295"])
                    .to_owned(),
            })),
        };
        let mode = self.random.pick(&[0, 1, 2, 3, 5, 6, 7, 8, -1, i32::MAX]);
        let access_mode = (self.random.below(5) > 0).then_some(AccessMode { mode });
        VolumeCapability {
            access_type,
            access_mode,
        }
    }

    fn maybe_capability(&mut self) -> Option<VolumeCapability> {
        let capability = self.capability();
        (self.random.below(4) > 0).then_some(capability)
    }

    fn capabilities(&mut self) -> Vec<VolumeCapability> {
        (0..self.random.below(3))
            .map(|_| self.capability())
            .collect()
    }

    fn source(&mut self) -> Option<VolumeContentSource> {
        let id = self.id();
        match self.random.below(4) {
            0 => Some(VolumeContentSource { r#type: None }),
            1 => from_snapshot(&id),
            2 => from_volume(&id),
            _ => None,
        }
    }

    fn topologies(&mut self) -> Vec<Topology> {
        (0..self.random.below(3))
            .map(|_| Topology {
                segments: self.map(),
            })
            .collect()
    }

    fn create_volume(&mut self) -> CreateVolumeRequest {
        CreateVolumeRequest {
            name: self.text(),
            capacity_range: self.range(),
            volume_capabilities: self.capabilities(),
            parameters: self.map(),
            secrets: self.map(),
            volume_content_source: self.source(),
            accessibility_requirements: Some(TopologyRequirement {
                requisite: self.topologies(),
                preferred: self.topologies(),
            }),
            mutable_parameters: self.map(),
        }
    }

    fn delete_volume(&mut self) -> DeleteVolumeRequest {
        DeleteVolumeRequest {
            volume_id: self.text(),
            secrets: self.map(),
        }
    }

    fn attach(&mut self) -> ControllerPublishVolumeRequest {
        ControllerPublishVolumeRequest {
            volume_id: self.id(),
            node_id: self.random.pick(&["", "node-a", "node-b", "\0"]).to_owned(),
            volume_capability: self.maybe_capability(),
            readonly: self.random.below(2) == 0,
            ..ControllerPublishVolumeRequest::default()
        }
    }

    fn detach(&mut self) -> ControllerUnpublishVolumeRequest {
        ControllerUnpublishVolumeRequest {
            volume_id: self.id(),
            node_id: self.text(),
            secrets: self.map(),
        }
    }

    fn validate(&mut self) -> ValidateVolumeCapabilitiesRequest {
        validate_capabilities(&self.id(), self.capabilities())
    }

    fn list_volumes(&mut self) -> ListVolumesRequest {
        ListVolumesRequest {
            max_entries: i32::try_from(self.number()).unwrap_or(-7),
            starting_token: self.text(),
        }
    }

    fn get_capacity(&mut self) -> GetCapacityRequest {
        GetCapacityRequest {
            volume_capabilities: self.capabilities(),
            parameters: self.map(),
            accessible_topology: Some(Topology {
                segments: self.map(),
            }),
        }
    }

    fn create_snapshot(&mut self) -> CreateSnapshotRequest {
        CreateSnapshotRequest {
            source_volume_id: self.id(),
            name: self.text(),
            parameters: self.map(),
            ..CreateSnapshotRequest::default()
        }
    }

    fn delete_snapshot(&mut self) -> DeleteSnapshotRequest {
        DeleteSnapshotRequest {
            snapshot_id: self.text(),
            secrets: self.map(),
        }
    }

    fn list_snapshots(&mut self) -> ListSnapshotsRequest {
        ListSnapshotsRequest {
            snapshot_id: self.id(),
            source_volume_id: self.id(),
            starting_token: self.text(),
            ..ListSnapshotsRequest::default()
        }
    }

    fn get_snapshot(&mut self) -> GetSnapshotRequest {
        GetSnapshotRequest {
            snapshot_id: self.id(),
            secrets: self.map(),
        }
    }

    fn expand(&mut self) -> ControllerExpandVolumeRequest {
        ControllerExpandVolumeRequest {
            volume_id: self.id(),
            capacity_range: self.range(),
            volume_capability: self.maybe_capability(),
            secrets: self.map(),
        }
    }

    fn get_volume(&mut self) -> ControllerGetVolumeRequest {
        ControllerGetVolumeRequest {
            volume_id: self.id(),
        }
    }

    fn modify(&mut self) -> ControllerModifyVolumeRequest {
        ControllerModifyVolumeRequest {
            volume_id: self.id(),
            mutable_parameters: self.map(),
            secrets: self.map(),
        }
    }

    fn stage(&mut self) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: self.id(),
            staging_target_path: self.path(),
            volume_capability: self.maybe_capability(),
            ..NodeStageVolumeRequest::default()
        }
    }

    fn unstage(&mut self) -> NodeUnstageVolumeRequest {
        NodeUnstageVolumeRequest {
            volume_id: self.id(),
            staging_target_path: self.path(),
        }
    }

    fn publish(&mut self) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: self.id(),
            staging_target_path: self.path(),
            target_path: self.path(),
            volume_capability: self.maybe_capability(),
            readonly: self.random.below(2) == 0,
            ..NodePublishVolumeRequest::default()
        }
    }

    fn unpublish(&mut self) -> NodeUnpublishVolumeRequest {
        NodeUnpublishVolumeRequest {
            volume_id: self.id(),
            target_path: self.path(),
        }
    }

    fn stats(&mut self) -> NodeGetVolumeStatsRequest {
        NodeGetVolumeStatsRequest {
            volume_id: self.id(),
            volume_path: self.path(),
            staging_target_path: self.path(),
        }
    }

    fn node_expand(&mut self) -> NodeExpandVolumeRequest {
        NodeExpandVolumeRequest {
            volume_id: self.id(),
            volume_path: self.path(),
            capacity_range: self.range(),
            volume_capability: self.maybe_capability(),
            ..NodeExpandVolumeRequest::default()
        }
    }

    /// One request to one of the RPCs.
    async fn send(&mut self, agent: &Agent) -> Result<(), Status> {
        // Each in the newest dialect and in an older one.
        let mut controller = (agent.controller(), controller_v0(agent));
        let mut node = (agent.node(), node_v0(agent));
        let is_old = self.random.below(3) == 0;
        // The same numbers mean nearly the same in the older one.
        macro_rules! either {
            ($clients:ident.$rpc:ident($request:expr): $type:ident) => {{
                let request = $request;
                if is_old {
                    let bytes = request.encode_to_vec();
                    let request = v0::$type::decode(bytes.as_slice()).unwrap();
                    $clients.1.$rpc(request).await.map(drop)
                } else {
                    $clients.0.$rpc(request).await.map(drop)
                }
            }};
        }
        macro_rules! new {
            ($clients:ident, $rpc:ident, $request:expr) => {{
                let request = $request;
                $clients.0.$rpc(request).await.map(drop)
            }};
        }
        match self.random.below(20) {
            0 | 1 => either!(controller.create_volume(self.create_volume()): CreateVolumeRequest),
            2 => either!(controller.delete_volume(self.delete_volume()): DeleteVolumeRequest),
            3 => {
                either!(controller.controller_publish_volume(self.attach()): ControllerPublishVolumeRequest)
            }
            4 => {
                either!(controller.controller_unpublish_volume(self.detach()): ControllerUnpublishVolumeRequest)
            }
            5 => {
                either!(controller.validate_volume_capabilities(self.validate()): ValidateVolumeCapabilitiesRequest)
            }
            6 => either!(controller.list_volumes(self.list_volumes()): ListVolumesRequest),
            7 => either!(controller.get_capacity(self.get_capacity()): GetCapacityRequest),
            8 => either!(controller.create_snapshot(self.create_snapshot()): CreateSnapshotRequest),
            9 => either!(controller.delete_snapshot(self.delete_snapshot()): DeleteSnapshotRequest),
            10 => either!(controller.list_snapshots(self.list_snapshots()): ListSnapshotsRequest),
            11 => new!(controller, get_snapshot, self.get_snapshot()),
            12 => new!(controller, controller_expand_volume, self.expand()),
            13 => new!(controller, controller_get_volume, self.get_volume()),
            14 => new!(controller, controller_modify_volume, self.modify()),
            15 => either!(node.node_stage_volume(self.stage()): NodeStageVolumeRequest),
            16 => either!(node.node_unstage_volume(self.unstage()): NodeUnstageVolumeRequest),
            17 => either!(node.node_publish_volume(self.publish()): NodePublishVolumeRequest),
            18 => either!(node.node_unpublish_volume(self.unpublish()): NodeUnpublishVolumeRequest),
            _ if self.random.below(2) == 0 => new!(node, node_get_volume_stats, self.stats()),
            _ => new!(node, node_expand_volume, self.node_expand()),
        }
    }
}

/// Everything in the scratch directory but what the agent may touch.
fn outside(agent: &Agent) -> Vec<String> {
    let root = agent.scratch.path().to_string_lossy().into_owned();
    let listed = run(
        "find",
        &[
            &root,
            "-xdev",
            "-not",
            "-path",
            &format!("{root}/state*"),
            "-not",
            "-path",
            &format!("{root}/targets*"),
            "-not",
            "-path",
            &format!("{root}/staging*"),
        ],
    );
    let mut lines: Vec<String> = listed.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn thousands_of_hostile_requests_do_no_harm() {
    let agent = Agent::start().await;
    let mut ids = vec![
        "unknown".to_owned(),
        "node-b/default/00000000-0000-5000-8000-000000000000".to_owned(),
    ];
    for (name, capability) in [("mounted", mounted("ext4")), ("raw", raw())] {
        let id = volume(&agent, name, 4, &capability).await;
        let taken = ok(agent
            .controller()
            .create_snapshot(snapshot(name, &id))
            .await)
        .snapshot
        .unwrap();
        ids.extend([id, taken.snapshot_id]);
    }
    let precious = agent.path("precious");
    fs::write(&precious, "x").unwrap();
    let paths = [
        "staging",
        "staging/b",
        "targets/a",
        "targets/b",
        "precious",
        "precious/below",
        "missing/parent",
    ];
    let mut paths: Vec<String> = paths.iter().map(|path| text(agent.path(path))).collect();
    fs::create_dir_all(&paths[1]).unwrap();
    agent.scratch.directory("targets");
    paths.push(format!("{}/../../etc/drumlin-was-here", paths[0]));
    let before = outside(&agent);
    let seed = 0x5eed_2026_1121;
    let mut hostile = Hostile {
        random: Random(seed),
        ids,
        paths,
    };
    let mut codes = std::collections::BTreeMap::new();
    for number in 0..REQUESTS {
        let answer = hostile.send(&agent).await;
        let code = answer.as_ref().map_or_else(Status::code, |()| Code::Ok);
        *codes.entry(format!("{code:?}")).or_insert(0) += 1;
        // Unknown is what a client makes of a connection that broke: a panic of the whole process.
        let is_harmless = !matches!(
            code,
            Code::Internal | Code::Unknown | Code::Unavailable | Code::DataLoss
        );
        assert!(is_harmless, "request {number}: {answer:?}\n{}", agent.log());
    }
    assert!(!agent.log().contains("panic"), "{}", agent.log());
    ok(agent.identity().probe(ProbeRequest {}).await);
    assert_eq!(outside(&agent), before);
    assert_eq!(fs::read_to_string(precious).unwrap(), "x");
    assert!(
        codes.len() >= 5,
        "requests that are all refused alike test nothing: {codes:?}"
    );
}
