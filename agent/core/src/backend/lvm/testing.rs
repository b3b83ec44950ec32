//! Classes for tests, in volume groups of their own.

use std::ops::Deref;

pub(crate) use drumlin_lvm::testing::lvm;

use super::{Layout, Lvm, LvmSettings, PoolLimits, Provisioning, Thick, ThinPool, Wipe};
use crate::host::FileSystem;

/// A volume group of a test.
#[derive(Debug)]
pub(crate) struct Lab(drumlin_lvm::testing::Lab);

impl Deref for Lab {
    type Target = drumlin_lvm::testing::Lab;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Lab {
    /// A group over this number of disks of this size in mebibytes.
    pub(crate) fn new(disks: usize, mebibytes: u64) -> Self {
        Self(drumlin_lvm::testing::Lab::new(disks, mebibytes))
    }

    /// A class over a pool of the group.
    pub(crate) fn thin(&self, pool: &str, overcommit: u32) -> Lvm {
        self.class(Provisioning::Thin(ThinPool {
            name: pool.to_owned(),
            overcommit,
            create: None,
            limits: PoolLimits::default(),
        }))
    }

    /// A class of thick volumes in the group.
    pub(crate) fn thick(&self, layout: Layout) -> Lvm {
        self.class(Provisioning::Thick(Thick {
            layout,
            reserve: 0,
            snapshot_size: 20,
            wipe: Wipe::Zero,
            deletes_snapshots: false,
        }))
    }

    /// A class in the group.
    pub(crate) fn class(&self, provisioning: Provisioning) -> Lvm {
        Lvm::new(LvmSettings {
            volume_group: self.group.clone(),
            provisioning,
            class: "fast".parse().unwrap(),
            node: "node-a".parse().unwrap(),
            file_system: FileSystem::Ext4,
            longest_freeze: None,
            adoption: None,
        })
    }
}
