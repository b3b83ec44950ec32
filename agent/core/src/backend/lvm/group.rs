//! A volume group as the classes in it share it: with the state of recovery, and of the creation of pools.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, Mutex, OnceLock, Weak, atomic::AtomicU64},
};

use drumlin_lvm::VolumeGroup;

use crate::{host::lock, types::NodeName};

/// A volume group, and what this agent knows of it.
#[derive(Debug)]
pub(super) struct Group {
    lvm: Arc<VolumeGroup>,
    /// The name of this node, once recovery has run for it.
    pub(super) node: OnceLock<NodeName>,
    /// The number of completed recoveries.
    pub(super) repairs: AtomicU64,
    /// Locked while a pool is created: several classes may use the same one.
    pub(super) making_pool: tokio::sync::Mutex<()>,
}

impl Group {
    /// The group `name`, shared by all classes in it.
    pub(super) fn of(name: &str) -> Arc<Self> {
        static GROUPS: Mutex<Option<HashMap<String, Weak<Group>>>> = Mutex::new(None);
        let mut groups = lock(&GROUPS);
        let groups = groups.get_or_insert_default();
        if let Some(group) = groups.get(name).and_then(Weak::upgrade) {
            return group;
        }
        let group = Arc::new(Self {
            lvm: Arc::new(VolumeGroup::new(name)),
            node: OnceLock::new(),
            repairs: AtomicU64::new(0),
            making_pool: tokio::sync::Mutex::new(()),
        });
        let this = Arc::downgrade(&group);
        group.check_devices_by(move |now| {
            let this = this.upgrade();
            this.map_or(Ok(false), |this| this.check_devices(now))
        });
        groups.insert(name.to_owned(), Arc::downgrade(&group));
        group
    }
}

impl Deref for Group {
    type Target = Arc<VolumeGroup>;

    fn deref(&self) -> &Arc<VolumeGroup> {
        &self.lvm
    }
}
