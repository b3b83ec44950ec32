//! The LVM back end: thin volumes in a pool, and thick volumes of a volume group's own extents.
//!
//! The disks are the only record: names, labels and sizes are LVM tags, created together with the volume in one
//! metadata change. They are read from the disks without running a program. All changes are made by LVM's own
//! commands, except for table reloads of devices that must not be suspended for long.

mod adopt_node;
mod class;
mod create;
mod devices;
mod extend;
mod flushing;
mod foreign;
mod group;
mod group_records;
mod group_snapshot;
mod images;
mod layers;
mod names;
mod range_spool;
mod recovery;
mod rename;
mod rollback;
mod settings;
mod survey;
mod tags;
#[cfg(all(test, feature = "lab"))]
pub(super) mod testing;
mod thick;
mod thin;
mod volume_type;

pub use self::class::Lvm;
pub use self::settings::{
    Layout, LvmSettings, NewPool, PoolLimits, PoolSize, Provisioning, Thick, ThinPool, Wipe,
};
pub use self::survey::{Owned, keeps_orphan, own_devices, owned, wrong_group_tags, wrong_tags};
pub(crate) use self::tags::read_metadata;
pub use self::thin::create_pool::POOL_METADATA;
use self::{
    class::OwnVolume,
    devices::{check_unused, is_mounted, node},
    names::{end_of, name_of, temporary_snapshot_of},
};
use super::{Capacity, Change, Health, Image, ImageSpec, LabelChange};
