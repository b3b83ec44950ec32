//! Requests as callers send them.

use drumlin_proto::{
    csi::v1::{
        CapacityRange, ControllerExpandVolumeRequest, CreateSnapshotRequest,
        CreateVolumeGroupSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
        DeleteVolumeGroupSnapshotRequest, DeleteVolumeRequest, NodeExpandVolumeRequest,
        NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
        NodeUnstageVolumeRequest, ValidateVolumeCapabilitiesRequest, VolumeCapability,
        VolumeContentSource, VolumeGroupSnapshot,
        volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
        volume_content_source::{SnapshotSource, Type, VolumeSource},
    },
    volumegroup::{
        CreateVolumeGroupRequest, DeleteVolumeGroupRequest, ModifyVolumeGroupMembershipRequest,
    },
};

/// 2²⁰ bytes.
pub const MIB: i64 = 1 << 20;

/// A mounted volume with this file system; the class's own when it is empty.
pub fn mounted(fs_type: &str) -> VolumeCapability {
    capability(
        AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            ..MountVolume::default()
        }),
        Mode::SingleNodeWriter,
    )
}

/// A raw volume.
pub fn raw() -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter)
}

/// Any capability.
pub fn capability(access_type: AccessType, mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

/// The same for another mode.
pub fn for_mode(capability: &VolumeCapability, mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        ..capability.clone()
    }
}

/// A blank volume of at least this many mebibytes.
pub fn create(name: &str, mebibytes: i64, capability: &VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes: mebibytes * MIB,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![capability.clone()],
        ..CreateVolumeRequest::default()
    }
}

/// The contents of a snapshot.
pub fn from_snapshot(snapshot_id: &str) -> Option<VolumeContentSource> {
    Some(VolumeContentSource {
        r#type: Some(Type::Snapshot(SnapshotSource {
            snapshot_id: snapshot_id.to_owned(),
        })),
    })
}

/// The contents of a volume.
pub fn from_volume(volume_id: &str) -> Option<VolumeContentSource> {
    Some(VolumeContentSource {
        r#type: Some(Type::Volume(VolumeSource {
            volume_id: volume_id.to_owned(),
        })),
    })
}

/// Deletes a volume.
pub fn delete(volume_id: &str) -> DeleteVolumeRequest {
    DeleteVolumeRequest {
        volume_id: volume_id.to_owned(),
        ..DeleteVolumeRequest::default()
    }
}

/// Takes a snapshot.
pub fn snapshot(name: &str, source_volume_id: &str) -> CreateSnapshotRequest {
    CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: source_volume_id.to_owned(),
        ..CreateSnapshotRequest::default()
    }
}

/// Grows a volume to at least this many mebibytes.
pub fn expand(volume_id: &str, mebibytes: i64) -> ControllerExpandVolumeRequest {
    ControllerExpandVolumeRequest {
        volume_id: volume_id.to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes: mebibytes * MIB,
            limit_bytes: 0,
        }),
        ..ControllerExpandVolumeRequest::default()
    }
}

/// Stages a volume.
pub fn stage(
    volume_id: &str,
    staging: &str,
    capability: &VolumeCapability,
) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: volume_id.to_owned(),
        staging_target_path: staging.to_owned(),
        volume_capability: Some(capability.clone()),
        ..NodeStageVolumeRequest::default()
    }
}

/// Unstages a volume.
pub fn unstage(volume_id: &str, staging: &str) -> NodeUnstageVolumeRequest {
    NodeUnstageVolumeRequest {
        volume_id: volume_id.to_owned(),
        staging_target_path: staging.to_owned(),
    }
}

/// Publishes a staged volume.
pub fn publish(
    volume_id: &str,
    (staging, target): (&str, &str),
    capability: &VolumeCapability,
) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        staging_target_path: staging.to_owned(),
        target_path: target.to_owned(),
        volume_capability: Some(capability.clone()),
        ..NodePublishVolumeRequest::default()
    }
}

/// Unpublishes a volume.
pub fn unpublish(volume_id: &str, target: &str) -> NodeUnpublishVolumeRequest {
    NodeUnpublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        target_path: target.to_owned(),
    }
}

/// Grows the file system of a published volume to the size of its device.
pub fn node_expand(volume_id: &str, volume_path: &str) -> NodeExpandVolumeRequest {
    NodeExpandVolumeRequest {
        volume_id: volume_id.to_owned(),
        volume_path: volume_path.to_owned(),
        ..NodeExpandVolumeRequest::default()
    }
}

/// Asks whether a volume has capabilities.
pub fn validate_capabilities(
    volume_id: &str,
    volume_capabilities: Vec<VolumeCapability>,
) -> ValidateVolumeCapabilitiesRequest {
    ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.to_owned(),
        volume_capabilities,
        ..ValidateVolumeCapabilitiesRequest::default()
    }
}

/// Deletes a snapshot.
pub fn delete_snapshot(snapshot_id: &str) -> DeleteSnapshotRequest {
    DeleteSnapshotRequest {
        snapshot_id: snapshot_id.to_owned(),
        ..DeleteSnapshotRequest::default()
    }
}

/// Takes a group snapshot of these volumes.
pub fn create_group_snapshot(
    name: &str,
    source_volume_ids: Vec<String>,
) -> CreateVolumeGroupSnapshotRequest {
    CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids,
        ..CreateVolumeGroupSnapshotRequest::default()
    }
}

/// Deletes a group snapshot, whatever its members are.
pub fn delete_group_snapshot(taken: &VolumeGroupSnapshot) -> DeleteVolumeGroupSnapshotRequest {
    let members = taken.snapshots.iter();
    DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: taken.group_snapshot_id.clone(),
        snapshot_ids: members.map(|member| member.snapshot_id.clone()).collect(),
        ..DeleteVolumeGroupSnapshotRequest::default()
    }
}

/// Creates a volume group of these volumes.
pub fn create_group(name: &str, volume_ids: Vec<String>) -> CreateVolumeGroupRequest {
    CreateVolumeGroupRequest {
        name: name.to_owned(),
        volume_ids,
        ..CreateVolumeGroupRequest::default()
    }
}

/// Makes these volumes the members of a volume group.
pub fn set_members(
    volume_group_id: &str,
    volume_ids: Vec<String>,
) -> ModifyVolumeGroupMembershipRequest {
    ModifyVolumeGroupMembershipRequest {
        volume_group_id: volume_group_id.to_owned(),
        volume_ids,
        ..ModifyVolumeGroupMembershipRequest::default()
    }
}

/// Deletes a volume group.
pub fn delete_group(volume_group_id: &str) -> DeleteVolumeGroupRequest {
    DeleteVolumeGroupRequest {
        volume_group_id: volume_group_id.to_owned(),
        ..DeleteVolumeGroupRequest::default()
    }
}
