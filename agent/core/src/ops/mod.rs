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

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub use adoption::adoption;
pub use capacity::CapacityQuery;
pub use class::{Class, Classes};
pub use controller_publish::PublishController;
pub use group_snapshot::{CreateGroupSnapshot, GroupSnapshot};
pub use inventory::{Inventory, Object};
pub use node_publish::PublishVolume;
pub use pagination::{Listing, PageRequest};
pub use reclaim::Reclaimed;
pub use rollback::RollBack;
pub use snapshot::{CreateSnapshot, Snapshot, SnapshotFilter};
pub use stage::StageVolume;
pub use stats::{Usage, VolumeStats};
pub use target_path::{Target, TargetCleanup};
pub use volume::{Condition, CreateVolume, Source, Volume};
pub use volume_group::{CreateVolumeGroup, VolumeGroup};

use crate::types::{ClassName, ImageId, NodeName};
use locks::{LockMode, Locks};
use tasks::Tasks;

/// What the agent is told about itself.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This node's name.
    pub node: NodeName,
    /// Whether volumes must be published by the controller before a node may use them.
    pub attach: bool,
    /// How many volumes the node may have published at a time; enforced when `attach` is set.
    pub max_volumes: Option<u32>,
    /// What becomes of the members of a group that is deleted.
    pub on_group_delete: OnGroupDelete,
}

/// What becomes of the members of a group that is deleted (volumegroup, `DeleteVolumeGroup`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnGroupDelete {
    /// They stay, in no group.
    #[default]
    Unlink,
    /// A group that has members is not deleted.
    Refuse,
    /// They are deleted with it.
    Cascade,
}

/// The operations of one agent, over all its classes.
#[derive(Debug)]
pub struct Operations {
    settings: Settings,
    classes: Classes,
    changes: Tasks,
    /// The volumes whose stats are being read.
    measuring: Locks,
    publishing: tokio::sync::Mutex<()>,
    /// Held by whoever puts a volume into a group: no other may put it into another one meanwhile.
    grouping: tokio::sync::Mutex<()>,
    /// The classes that could not be read at the start: what was interrupted in them is still so.
    unrecovered: Mutex<BTreeSet<ClassName>>,
    /// What was wrong with the classes when they were looked at last: said once, however often it is asked for.
    trouble: Mutex<Vec<String>>,
}

impl Operations {
    /// Operations over `classes`. Call [`Operations::recover`] before the first change.
    pub fn new(settings: Settings, classes: Classes) -> Arc<Self> {
        Arc::new(Self {
            settings,
            changes: Tasks::new(classes.iter().cloned().collect()),
            classes,
            measuring: Locks::default(),
            publishing: tokio::sync::Mutex::default(),
            grouping: tokio::sync::Mutex::default(),
            unrecovered: Mutex::default(),
            trouble: Mutex::default(),
        })
    }

    /// What the agent was told about itself.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Finishes or undoes what an earlier agent left half-made, in every class that can be read.
    /// A class that cannot is reported by [`Operations::probe`] and recovered when it comes back.
    pub async fn recover(self: &Arc<Self>) {
        let mut readable = Vec::new();
        for class in self.classes.iter() {
            match self.recover_class(class).await {
                Ok(()) => readable.push(class),
                Err(error) => self.recover_later(class, &error),
            }
        }
        // The volumes of a group may be in several classes.
        for class in readable {
            if let Err(error) = self.recover_groups(class, false).await {
                self.recover_later(class, &error);
            }
        }
    }

    async fn recover_class(self: &Arc<Self>, class: &Class) -> crate::Result<()> {
        class.backend.recover().await?;
        self.end_deletions(class).await
    }

    /// Goes on with deletions that were interrupted.
    async fn end_deletions(self: &Arc<Self>, class: &Class) -> crate::Result<()> {
        for id in class.backend.deleting().await? {
            self.end_deletion(class, id);
        }
        Ok(())
    }

    fn recover_later(&self, class: &Class, error: &crate::Error) {
        tracing::warn!(class = %class.name, error = %error.chain(), "class unavailable");
        self.unrecovered().insert(class.name.clone());
    }

    fn unrecovered(&self) -> MutexGuard<'_, BTreeSet<ClassName>> {
        let locked = self.unrecovered.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// Recovers a class that could not be read at the start and can be by now; once.
    fn recover_now(self: &Arc<Self>, class: &Class) {
        if !self.unrecovered().remove(&class.name) {
            return;
        }
        let (this, class) = (Arc::clone(self), class.clone());
        tokio::spawn(async move {
            if let Err(error) = this.recover_class(&class).await {
                return this.recover_later(&class, &error);
            }
            // What others have waited for may be in this one.
            for class in this.classes.iter() {
                if let Err(error) = this.recover_groups(class, true).await {
                    this.recover_later(class, &error);
                }
            }
        });
    }

    /// Goes on with a deletion that was interrupted; it may take long, and nobody waits for it.
    fn end_deletion(self: &Arc<Self>, class: &Class, id: ImageId) {
        let (this, class) = (Arc::clone(self), class.clone());
        tokio::spawn(async move {
            let delete = async move {
                tracing::warn!(class = %class.name, image = %id, "resuming interrupted deletion");
                class.backend.end_deletion(id).await
            };
            let ended = this
                .changes
                .run(vec![LockMode::Exclusive(id)], delete)
                .await;
            // Where somebody is at it, that is no news.
            if let Err(error) = ended
                && error.kind() != crate::Kind::Busy
            {
                // Whoever asked for it asks again.
                tracing::warn!(image = %id, error = %error.chain(), "interrupted deletion not completed");
            }
        });
    }

    /// Whether every class can be read and written.
    ///
    /// # Errors
    /// [`crate::Kind::Precondition`] that says which class lacks what.
    pub async fn probe(self: &Arc<Self>) -> crate::Result<()> {
        let mut problems = Vec::new();
        for class in self.classes.iter() {
            match class.backend.check().await {
                Ok(()) => {
                    self.recover_now(class);
                    // A program of LVM's may have been killed without this one.
                    if let Err(error) = self.end_deletions(class).await {
                        problems.push(format!("class {}: {}", class.name, error.chain()));
                    }
                }
                Err(error) => problems.push(format!("class {}: {}", class.name, error.chain())),
            }
        }
        self.tell_trouble(&problems);
        if problems.is_empty() {
            return Ok(());
        }
        Err(crate::Error::new(
            crate::Kind::Precondition,
            problems.join("; "),
        ))
    }

    /// Tells an operator what has become wrong with the classes, or right again.
    fn tell_trouble(&self, problems: &[String]) {
        let mut told = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        for problem in problems.iter().filter(|problem| !told.contains(problem)) {
            tracing::warn!(error = %problem, "class unavailable");
        }
        if problems.is_empty() && !told.is_empty() {
            tracing::info!("all classes available again");
        }
        problems.clone_into(&mut told);
    }

    /// Takes no new changes and waits for the running ones to end.
    pub async fn shut_down(&self) {
        self.changes.shut_down().await;
    }
}
