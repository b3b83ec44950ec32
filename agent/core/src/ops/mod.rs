//! The rules of volumes, snapshots and nodes, once for every back end and every caller.
//!
//! To find an RPC: `csi.v1.Controller/CreateVolume` → `agent/src/rpc/csi_v1/controller.rs: create_volume`
//! → `ops/controller/volume.rs: create_volume`.

mod class;
mod controller;
mod group;
mod lookup;
mod node;
mod operations;
mod task;

pub use class::{Class, ClassSet, Classes};
pub use controller::adoption::adoption;
pub use controller::capacity::CapacityQuery;
pub use controller::changed_blocks::{ChangedRanges, ChangedRequest};
pub use controller::class_set::Occupancy;
pub use controller::class_watch::ClassWatch;
pub use controller::classes::ClassState;
pub use controller::controller_publish::PublishController;
pub use controller::foreign::{
    AdoptVolume, Adopted, Foreign, ForeignList, ReleaseVolume, Released, Run,
};
pub use controller::foreign_contents::MountedAt;
pub use controller::health::VolumeHealth;
pub use controller::inventory::{Inventory, Object};
pub use controller::pagination::{Listing, PageRequest};
pub use controller::parameters::tenant;
pub use controller::snapshot::{CreateSnapshot, Snapshot, SnapshotFilter};
pub use controller::survey::{adopted_from, created, was_staged_raw};
pub use controller::trash::{Trash, TrashPolicy, TrashedVolume};
pub use controller::trash_room::TrashWatch;
pub use controller::validate::ValidateVolume;
pub use controller::volume::{Condition, CreateVolume, Source, Volume};
use controller::{
    all_classes, capacity, health, labels, mutable_parameters, parameters, snapshot, trash, volume,
};
pub use group::group_snapshot::{CreateGroupSnapshot, GroupSnapshot};
pub use group::rollback::RollBack;
pub use group::volume_group::{CreateVolumeGroup, VolumeGroup};
use group::{group_snapshot, rollback, volume_group};
pub use node::node_publish::PublishVolume;
pub use node::reclaim::Reclaimed;
pub use node::stage::StageVolume;
pub use node::stats::{Usage, VolumeStats};
pub use node::target_path::{Target, TargetCleanup};
use node::{devices, fs_group, io_limits, node_publish, stage, staging_record, target_path};
pub use operations::{OnGroupDelete, Operations, Settings};
use task::{changes, locks, recovery, tasks};
