//! Group snapshots and rollbacks that an earlier agent was interrupted in: undone, or gone on with.
//!
//! Writers go on before the agent serves; what takes longer nobody waits for.

use std::sync::Arc;

use super::{
    Class, Operations,
    devices::Devices,
    group_snapshot::member_id,
    labels::{self, Read},
    locks::Hold,
    resolve::Found,
    rollback::UNDECIDED,
};
use crate::{
    Result,
    backend::LabelChange,
    blocking,
    host::{MountTable, freeze},
    types::{ImageId, ImageKind},
};

impl Operations {
    /// Ends or undoes what was interrupted, of the groups whose records are in a class.
    ///
    /// # Errors
    /// When the class cannot be read; then nothing was done.
    pub(super) async fn recover_groups(self: &Arc<Self>, class: &Class) -> Result<()> {
        let groups = class.backend.list(ImageKind::GroupSnapshot).await?;
        let volumes = class.backend.list(ImageKind::Volume).await?;
        for image in groups {
            let found = Found {
                handle: self.handle_in(class, image.id),
                class: class.clone(),
                image,
            };
            // That of a newer agent is its own to end.
            if found.readable().is_ok() {
                self.recover_group(found).await;
            }
        }
        for image in volumes {
            let found = Found {
                handle: self.handle_in(class, image.id),
                class: class.clone(),
                image,
            };
            if found.readable().is_ok() && self.is_held_for_nothing(&found).await {
                tracing::warn!(volume.id = %found.handle, "was to be rolled back, which did not begin");
                let this = Arc::clone(self);
                tokio::spawn(async move { this.let_go(found).await });
            }
        }
        Ok(())
    }

    async fn recover_group(self: &Arc<Self>, found: Found) {
        let this = Arc::clone(self);
        if found.is_rolling() {
            tracing::warn!(group.id = %found.handle, "goes on with a rollback that was interrupted");
            tokio::spawn(async move { this.go_on_rolling(found).await });
            return;
        }
        let Some(state) = found.image.label(labels::STATE) else {
            return;
        };
        if state == UNDECIDED && self.is_kept(&found).await {
            return;
        }
        tracing::warn!(group.id = %found.handle, "ends a group snapshot that was interrupted");
        if let Err(error) = self.release_members(&found).await {
            tracing::warn!(group.id = %found.handle, error = %error.chain(), "group snapshot not ended");
            return;
        }
        tokio::spawn(async move { this.end_interrupted(found).await });
    }

    async fn end_interrupted(self: Arc<Self>, group: Found) {
        let id = group.image.id;
        let own = group.members();
        let members = own
            .iter()
            .map(|volume| Hold::Exclusive(member_id(id, volume)));
        let holds = [Hold::Exclusive(id)].into_iter().chain(members).collect();
        let (this, handle) = (Arc::clone(&self), group.handle.clone());
        let end = async move { this.end_group_snapshot(&group).await };
        if let Err(error) = self.changes.run(holds, end).await {
            // Whoever asks for it again has it ended.
            tracing::warn!(group.id = %handle, error = %error.chain(), "group snapshot not ended");
        }
    }

    /// Thaws what an agent had frozen that died with its guard.
    async fn release_members(&self, group: &Found) -> Result<()> {
        let volumes = self.volumes_of(group.members().iter()).await?;
        for found in volumes.iter() {
            let devices = Devices::of(found).await?;
            blocking(move || {
                for mount in devices.mounts(&MountTable::read()?) {
                    // A raw volume is shown as a file, and has nothing to thaw.
                    if mount.target.is_dir() && freeze::thaw(&mount.target)? == freeze::Thaw::Thawed
                    {
                        tracing::warn!(object = %mount.target.display(), "file system thawed");
                    }
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    async fn go_on_rolling(self: Arc<Self>, group: Found) {
        let holds = Self::rollback_holds(&group);
        let (this, handle) = (Arc::clone(&self), group.handle.clone());
        let forward = async move { this.roll_forward(group).await };
        if let Err(error) = self.changes.run(holds, forward).await {
            // Its volumes stay out of use until it is asked for again.
            tracing::error!(group.id = %handle, error = %error.chain(), "rollback not ended");
        }
    }

    /// Gives a volume free that is held for a rollback which is not running.
    async fn let_go(self: Arc<Self>, volume: Found) {
        let handle = volume.handle.clone();
        let id: ImageId = volume.image.id;
        let this = Arc::clone(&self);
        let free = async move {
            let now = volume.class.backend.get(id).await?;
            let Some(image) = now else { return Ok(()) };
            let volume = Found { image, ..volume };
            // It may have begun since.
            if this.is_held_for_nothing(&volume).await {
                let change = LabelChange::remove(labels::ROLLS_TO);
                volume.class.backend.relabel(id, &change).await?;
            }
            Ok(())
        };
        if let Err(error) = self.changes.run(vec![Hold::Exclusive(id)], free).await {
            tracing::warn!(volume.id = %handle, error = %error.chain(), "volume not given free");
        }
    }
}
