//! Converts the health of volumes and storage to its messages (CSI 1.13).

use drumlin_core::{
    backend::{Fault, Impact, Reason},
    ops::VolumeHealth,
};
use drumlin_proto::csi::v1::{
    self, StorageHealthErrorType, VolumeHealthErrorType,
    node_get_storage_health_response::StorageBackendHealth, volume_health::VolumeHealthEntry,
};

use super::convert;

/// Converts the health of a volume to its message.
pub(super) fn volume(health: &VolumeHealth) -> v1::VolumeHealth {
    let entry = |fault: &Fault| VolumeHealthEntry {
        status: match fault.reason.impact() {
            Impact::Degraded => VolumeHealthErrorType::Degraded,
            Impact::Inaccessible => VolumeHealthErrorType::Inaccessible,
            Impact::DataLoss => VolumeHealthErrorType::DataLoss,
        }
        .into(),
        reason: fault.reason.word().to_owned(),
        message: convert::words(&fault.message),
    };
    v1::VolumeHealth {
        volume_id: health.handle.to_string(),
        health_statuses: health.faults.iter().map(entry).collect(),
    }
}

/// Converts a fault of the storage to its message.
pub(super) fn storage(fault: &Fault) -> StorageBackendHealth {
    // What else is wrong with a class concerns some of its volumes, or new ones.
    let status = match fault.reason {
        Reason::ClassUnavailable | Reason::DiskStalled | Reason::PoolFailed => {
            StorageHealthErrorType::StorageUnreachable
        }
        _ => StorageHealthErrorType::StorageDegraded,
    };
    StorageBackendHealth {
        status: status.into(),
        reason: fault.reason.word().to_owned(),
        message: convert::words(&fault.message),
        volume_capability: None,
    }
}
