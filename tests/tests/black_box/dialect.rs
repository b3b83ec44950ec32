//! One volume through any dialect. What a dialect has no words for is said in `csi.v1`.

use drumlin_proto::{
    csi::{v0, v0_1, v1},
    reclaimspace::{
        reclaim_space_controller_client::ReclaimSpaceControllerClient,
        reclaim_space_node_client::ReclaimSpaceNodeClient,
    },
};
use drumlin_tests::{
    agent::Agent,
    requests::{MIB, create, delete, from_snapshot, mounted, publish, raw, snapshot, stage},
    requests::{unpublish, unstage},
};
use tonic::{Response, Status, transport::Channel};

use crate::helpers::{ok, paths};

/// A way to speak to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    V1,
    V0,
    V0_1,
}

/// Whether a volume is used raw, or with a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Mounted,
    Raw,
}

type Answer<T> = Result<Response<T>, Status>;

fn is<T, U>(answer: Answer<T>, part: impl FnOnce(T) -> U) -> Result<U, Status> {
    answer.map(|answer| part(answer.into_inner()))
}

/// The version that 0.1 wants in every request.
pub(crate) const VERSION: Option<v0_1::Version> = Some(v0_1::Version {
    major: 0,
    minor: 1,
    patch: 0,
});

pub(crate) fn controller_v0(agent: &Agent) -> v0::controller_client::ControllerClient<Channel> {
    v0::controller_client::ControllerClient::new(agent.channel())
}

pub(crate) fn node_v0(agent: &Agent) -> v0::node_client::NodeClient<Channel> {
    v0::node_client::NodeClient::new(agent.channel())
}

pub(crate) fn controller_v0_1(agent: &Agent) -> v0_1::controller_client::ControllerClient<Channel> {
    v0_1::controller_client::ControllerClient::new(agent.channel())
}

pub(crate) fn node_v0_1(agent: &Agent) -> v0_1::node_client::NodeClient<Channel> {
    v0_1::node_client::NodeClient::new(agent.channel())
}

pub(crate) fn reclaim_controller(agent: &Agent) -> ReclaimSpaceControllerClient<Channel> {
    ReclaimSpaceControllerClient::new(agent.channel())
}

pub(crate) fn reclaim_node(agent: &Agent) -> ReclaimSpaceNodeClient<Channel> {
    ReclaimSpaceNodeClient::new(agent.channel())
}

/// One writer on one node.
pub(crate) fn capability_v0(how: Use) -> v0::VolumeCapability {
    use v0::volume_capability::{
        AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
    };
    let access_type = match how {
        Use::Raw => AccessType::Block(BlockVolume {}),
        Use::Mounted => AccessType::Mount(MountVolume {
            fs_type: "ext4".to_owned(),
            mount_flags: Vec::new(),
        }),
    };
    v0::VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
    }
}

/// One writer on one node.
pub(crate) fn capability_v0_1(how: Use) -> v0_1::VolumeCapability {
    use v0_1::volume_capability::{
        AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
    };
    let access_type = match how {
        Use::Raw => AccessType::Block(BlockVolume {}),
        Use::Mounted => AccessType::Mount(MountVolume {
            fs_type: "ext4".to_owned(),
            mount_flags: Vec::new(),
        }),
    };
    v0_1::VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
    }
}

/// One writer on one node.
pub(crate) fn capability_v1(how: Use) -> v1::VolumeCapability {
    match how {
        Use::Raw => raw(),
        Use::Mounted => mounted("ext4"),
    }
}

pub(crate) fn publish_v0(id: &str, at: (&str, &str), how: Use) -> v0::NodePublishVolumeRequest {
    v0::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: at.0.to_owned(),
        target_path: at.1.to_owned(),
        volume_capability: Some(capability_v0(how)),
        ..v0::NodePublishVolumeRequest::default()
    }
}

pub(crate) fn publish_v0_1(id: &str, target: &str, how: Use) -> v0_1::NodePublishVolumeRequest {
    v0_1::NodePublishVolumeRequest {
        version: VERSION,
        volume_id: id.to_owned(),
        target_path: target.to_owned(),
        volume_capability: Some(capability_v0_1(how)),
        ..v0_1::NodePublishVolumeRequest::default()
    }
}

pub(crate) fn unpublish_v0_1(id: &str, target: &str) -> v0_1::NodeUnpublishVolumeRequest {
    v0_1::NodeUnpublishVolumeRequest {
        version: VERSION,
        volume_id: id.to_owned(),
        target_path: target.to_owned(),
        ..v0_1::NodeUnpublishVolumeRequest::default()
    }
}

impl Dialect {
    pub(crate) const ALL: [Self; 3] = [Self::V1, Self::V0, Self::V0_1];

    /// Makes a volume; its id and size.
    pub(crate) async fn create(
        self,
        agent: &Agent,
        name: &str,
        mebibytes: i64,
        how: Use,
    ) -> Result<(String, i64), Status> {
        match self {
            Self::V1 => is(
                agent
                    .controller()
                    .create_volume(create(name, mebibytes, &capability_v1(how)))
                    .await,
                |answer| {
                    let volume = answer.volume.unwrap();
                    (volume.volume_id, volume.capacity_bytes)
                },
            ),
            Self::V0 => {
                let request = v0::CreateVolumeRequest {
                    name: name.to_owned(),
                    capacity_range: Some(v0::CapacityRange {
                        required_bytes: mebibytes * MIB,
                        limit_bytes: 0,
                    }),
                    volume_capabilities: vec![capability_v0(how)],
                    ..v0::CreateVolumeRequest::default()
                };
                is(
                    controller_v0(agent).create_volume(request).await,
                    |answer| {
                        let volume = answer.volume.unwrap();
                        (volume.id, volume.capacity_bytes)
                    },
                )
            }
            Self::V0_1 => {
                let request = v0_1::CreateVolumeRequest {
                    version: VERSION,
                    name: name.to_owned(),
                    capacity_range: Some(v0_1::CapacityRange {
                        required_bytes: (mebibytes * MIB).unsigned_abs(),
                        limit_bytes: 0,
                    }),
                    volume_capabilities: vec![capability_v0_1(how)],
                    ..v0_1::CreateVolumeRequest::default()
                };
                is(
                    controller_v0_1(agent).create_volume(request).await,
                    |answer| {
                        let volume = answer.volume_info.unwrap();
                        (volume.id, volume.capacity_bytes.cast_signed())
                    },
                )
            }
        }
    }

    /// The ids and sizes of all volumes.
    pub(crate) async fn list(self, agent: &Agent) -> Vec<(String, i64)> {
        let mut all: Vec<(String, i64)> = match self {
            Self::V1 => {
                let request = v1::ListVolumesRequest::default();
                let entries = ok(agent.controller().list_volumes(request).await).entries;
                let volumes = entries.into_iter().map(|entry| entry.volume.unwrap());
                volumes
                    .map(|volume| (volume.volume_id, volume.capacity_bytes))
                    .collect()
            }
            Self::V0 => {
                let request = v0::ListVolumesRequest::default();
                let entries = ok(controller_v0(agent).list_volumes(request).await).entries;
                let volumes = entries.into_iter().map(|entry| entry.volume.unwrap());
                volumes
                    .map(|volume| (volume.id, volume.capacity_bytes))
                    .collect()
            }
            Self::V0_1 => {
                let request = v0_1::ListVolumesRequest {
                    version: VERSION,
                    ..v0_1::ListVolumesRequest::default()
                };
                let entries = ok(controller_v0_1(agent).list_volumes(request).await).entries;
                let volumes = entries.into_iter().map(|entry| entry.volume_info.unwrap());
                volumes
                    .map(|volume| (volume.id, volume.capacity_bytes.cast_signed()))
                    .collect()
            }
        };
        all.sort();
        all
    }

    /// Has a volume appear at its target, staged where the dialect has that; says where.
    pub(crate) async fn mount(self, agent: &Agent, name: &str, id: &str, how: Use) -> String {
        let (staging, target) = paths(agent, name);
        // Whatever the dialect, a repeat changes nothing.
        for _ in 0..2 {
            match self {
                Self::V1 => {
                    let capability = capability_v1(how);
                    ok(agent
                        .node()
                        .node_stage_volume(stage(id, &staging, &capability))
                        .await);
                    let request = publish(id, (&staging, &target), &capability);
                    ok(agent.node().node_publish_volume(request).await);
                }
                Self::V0 => {
                    let request = v0::NodeStageVolumeRequest {
                        volume_id: id.to_owned(),
                        staging_target_path: staging.clone(),
                        volume_capability: Some(capability_v0(how)),
                        ..v0::NodeStageVolumeRequest::default()
                    };
                    ok(node_v0(agent).node_stage_volume(request).await);
                    let request = publish_v0(id, (&staging, &target), how);
                    ok(node_v0(agent).node_publish_volume(request).await);
                }
                Self::V0_1 => {
                    let request = publish_v0_1(id, &target, how);
                    ok(node_v0_1(agent).node_publish_volume(request).await);
                }
            }
        }
        target
    }

    /// Takes a volume away again.
    pub(crate) async fn unmount(self, agent: &Agent, name: &str, id: &str) {
        let (staging, target) = paths(agent, name);
        for _ in 0..2 {
            match self {
                Self::V1 => {
                    let mut node = agent.node();
                    ok(node.node_unpublish_volume(unpublish(id, &target)).await);
                    ok(node.node_unstage_volume(unstage(id, &staging)).await);
                }
                Self::V0 => {
                    let request = v0::NodeUnpublishVolumeRequest {
                        volume_id: id.to_owned(),
                        target_path: target.clone(),
                    };
                    ok(node_v0(agent).node_unpublish_volume(request).await);
                    let request = v0::NodeUnstageVolumeRequest {
                        volume_id: id.to_owned(),
                        staging_target_path: staging.clone(),
                    };
                    ok(node_v0(agent).node_unstage_volume(request).await);
                }
                Self::V0_1 => {
                    let request = unpublish_v0_1(id, &target);
                    ok(node_v0_1(agent).node_unpublish_volume(request).await);
                }
            }
        }
    }

    /// Takes a snapshot and makes a volume of it; their ids.
    pub(crate) async fn restore(
        self,
        agent: &Agent,
        (name, id): (&str, &str),
        mebibytes: i64,
        how: Use,
    ) -> (String, String) {
        if self != Self::V0 {
            let mut controller = agent.controller();
            let taken = ok(controller.create_snapshot(snapshot(name, id)).await);
            let taken = taken.snapshot.unwrap().snapshot_id;
            let request = v1::CreateVolumeRequest {
                volume_content_source: from_snapshot(&taken),
                ..create(name, mebibytes, &capability_v1(how))
            };
            let volume = ok(controller.create_volume(request).await).volume;
            return (taken, volume.unwrap().volume_id);
        }
        use v0::volume_content_source::{SnapshotSource, Type};
        let mut controller = controller_v0(agent);
        let request = v0::CreateSnapshotRequest {
            source_volume_id: id.to_owned(),
            name: name.to_owned(),
            ..v0::CreateSnapshotRequest::default()
        };
        let taken = ok(controller.create_snapshot(request).await);
        let taken = taken.snapshot.unwrap();
        let status = taken.status.unwrap();
        assert_eq!(status.r#type(), v0::snapshot_status::Type::Ready);
        assert_eq!(taken.source_volume_id, id);
        // Nanoseconds since 1970: after 2020.
        assert!(taken.created_at > 1_577_836_800_000_000_000);
        let source = Some(v0::VolumeContentSource {
            r#type: Some(Type::Snapshot(SnapshotSource {
                id: taken.id.clone(),
            })),
        });
        let request = v0::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(v0::CapacityRange {
                required_bytes: mebibytes * MIB,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![capability_v0(how)],
            volume_content_source: source.clone(),
            ..v0::CreateVolumeRequest::default()
        };
        let made = ok(controller.create_volume(request).await).volume.unwrap();
        assert_eq!(made.content_source, source);
        (taken.id, made.id)
    }

    /// Deletes a snapshot.
    pub(crate) async fn forget(self, agent: &Agent, snapshot: &str) {
        if self == Self::V0 {
            let request = v0::DeleteSnapshotRequest {
                snapshot_id: snapshot.to_owned(),
                ..v0::DeleteSnapshotRequest::default()
            };
            ok(controller_v0(agent).delete_snapshot(request).await);
        } else {
            let request = v1::DeleteSnapshotRequest {
                snapshot_id: snapshot.to_owned(),
                ..v1::DeleteSnapshotRequest::default()
            };
            ok(agent.controller().delete_snapshot(request).await);
        }
    }

    /// Deletes a volume.
    pub(crate) async fn delete(self, agent: &Agent, id: &str) {
        for _ in 0..2 {
            match self {
                Self::V1 => {
                    ok(agent.controller().delete_volume(delete(id)).await);
                }
                Self::V0 => {
                    let request = v0::DeleteVolumeRequest {
                        volume_id: id.to_owned(),
                        ..v0::DeleteVolumeRequest::default()
                    };
                    ok(controller_v0(agent).delete_volume(request).await);
                }
                Self::V0_1 => {
                    let request = v0_1::DeleteVolumeRequest {
                        version: VERSION,
                        volume_id: id.to_owned(),
                        ..v0_1::DeleteVolumeRequest::default()
                    };
                    ok(controller_v0_1(agent).delete_volume(request).await);
                }
            }
        }
    }
}
