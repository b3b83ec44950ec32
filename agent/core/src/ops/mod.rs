//! The rules of volumes, snapshots and nodes, once for every back end and every caller.
//!
//! To find an RPC: `csi.v1.Controller/CreateVolume` → `agent/src/rpc/csi_v1/controller.rs: create_volume`
//! → `ops/volume.rs: create_volume`.

mod adoption;
mod capacity;
mod class;
mod controller_publish;
mod devices;
mod fs_group;
mod group_snapshot;
mod idempotency;
mod inventory;
mod labels;
mod locks;
mod lookup;
mod mutable_parameters;
mod node_publish;
mod operations;
mod pagination;
mod parameters;
mod publish_unstaged;
mod reclaim;
mod recovery;
mod rollback;
mod snapshot;
mod stage;
mod stats;
mod target_path;
mod tasks;
mod volume;
mod volume_group;

pub use adoption::adoption;
pub use capacity::CapacityQuery;
pub use class::{Class, Classes};
pub use controller_publish::PublishController;
pub use group_snapshot::{CreateGroupSnapshot, GroupSnapshot};
pub use inventory::{Inventory, Object};
pub use node_publish::PublishVolume;
pub use operations::{OnGroupDelete, Operations, Settings};
pub use pagination::{Listing, PageRequest};
pub use reclaim::Reclaimed;
pub use rollback::RollBack;
pub use snapshot::{CreateSnapshot, Snapshot, SnapshotFilter};
pub use stage::StageVolume;
pub use stats::{Usage, VolumeStats};
pub use target_path::{Target, TargetCleanup};
pub use volume::{Condition, CreateVolume, Source, Volume};
pub use volume_group::{CreateVolumeGroup, VolumeGroup};
