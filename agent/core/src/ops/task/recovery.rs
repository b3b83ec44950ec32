//! Recovery of interrupted group snapshots and rollbacks: undone or continued.
//!
//! Volumes that are still quiesced are thawed before the agent serves; all longer work runs in the background. A class
//! can become available while others are already served, so every image is read again after acquiring its locks.

use std::{future::Future, sync::Arc, time::Duration};

use crate::ops::{
    Class, Operations,
    devices::Devices,
    group_snapshot::whole_holds,
    labels::{self, Read},
    locks::LockMode,
    lookup::LocatedImage,
    rollback::UNDECIDED,
};
use crate::{
    Kind, Result,
    host::{MountTable, freeze},
    types::ImageKind,
};

/// When recovery runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecoveryTime {
    /// Before the first call is served.
    Start,
    /// Beside calls, because a class was away.
    Later,
}

/// Pause between attempts while other operations hold the locks.
const PAUSE: Duration = Duration::from_millis(500);

impl Operations {
    /// Recovers the group snapshots whose records are in a class, and the volumes of the class. At start all writers
    /// are resumed when this returns.
    ///
    /// # Errors
    /// If the class cannot be read; then nothing was changed.
    pub(crate) async fn recover_groups(
        self: &Arc<Self>,
        class: &Class,
        when: RecoveryTime,
    ) -> Result<()> {
        for found in self.group_snapshots_of(class).await? {
            if found.is_rolling() {
                tracing::warn!(group.id = %found.handle, "resuming interrupted rollback");
                let holds = Self::rollback_holds(&found);
                self.when_free(holds, found, LocatedImage::is_rolling, Self::go_on_rolling);
            } else if found.image.label(labels::STATE).is_some() {
                if when == RecoveryTime::Start
                    && let Err(error) = self.release_members(&found).await
                {
                    tracing::warn!(group.id = %found.handle, error = %error.chain(), "volumes of an incomplete group snapshot not thawed");
                }
                let holds = whole_holds(found.image.id, &found.members());
                let is_left = |found: &LocatedImage| found.image.label(labels::STATE).is_some();
                self.when_free(holds, found, is_left, Self::end_interrupted);
            }
        }
        let (this, class) = (Arc::clone(self), class.clone());
        // In the background, because it reads all volumes; marked volumes cannot be used until then.
        tokio::spawn(async move {
            if let Err(error) = this.free_marked(&class).await {
                this.recover_later(&class, &error);
            }
        });
        Ok(())
    }

    /// Releases the volumes of a class that are marked for a rollback that is not in flight.
    async fn free_marked(self: &Arc<Self>, class: &Class) -> Result<()> {
        for image in class.backend.list(ImageKind::Volume).await? {
            let found = self.found(class, image);
            if found.readable().is_ok() && self.is_held_for_nothing(&found).await {
                let holds = vec![LockMode::Exclusive(found.image.id)];
                self.when_free(holds, found, |_| true, Self::let_go);
            }
        }
        Ok(())
    }

    /// The group snapshots of a class, without those with an unreadable record, for example of a newer agent.
    async fn group_snapshots_of(&self, class: &Class) -> Result<Vec<LocatedImage>> {
        let images = class.list(ImageKind::GroupSnapshot).await?;
        let found = images.into_iter().map(|image| self.found(class, image));
        Ok(found.filter(|found| found.readable().is_ok()).collect())
    }

    /// Re-reads an image after acquiring its locks, for which it waits, and runs `work` on it. Gives up once another
    /// operation has done the work (`is_left` returns false).
    fn when_free<F>(
        self: &Arc<Self>,
        holds: Vec<LockMode>,
        found: LocatedImage,
        is_left: fn(&LocatedImage) -> bool,
        work: impl Fn(Arc<Self>, LocatedImage) -> F + Send + Sync + Copy + 'static,
    ) where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let this = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let (these, known) = (Arc::clone(&this), found.clone());
                let done = this.changes.run(holds.clone(), async move {
                    match known.class.backend.get(known.image.id).await? {
                        Some(image) => work(these, LocatedImage { image, ..known }).await,
                        None => Ok(()),
                    }
                });
                match done.await {
                    Err(error) if error.kind() == Kind::Busy => {
                        tokio::time::sleep(PAUSE).await;
                        let now = found.class.backend.get(found.image.id).await;
                        let is_over = now.is_ok_and(|now| {
                            let now = now.map(|image| LocatedImage {
                                image,
                                ..found.clone()
                            });
                            now.is_none_or(|now| !is_left(&now))
                        });
                        if is_over {
                            return;
                        }
                    }
                    Err(error) => {
                        // A repeated call completes it.
                        tracing::error!(id = %found.handle, error = %error.chain(), "recovery of an interrupted operation failed");
                        return;
                    }
                    Ok(()) => return,
                }
            }
        });
    }

    async fn go_on_rolling(self: Arc<Self>, group: LocatedImage) -> Result<()> {
        self.roll_forward(group).await.map(drop)
    }

    async fn end_interrupted(self: Arc<Self>, group: LocatedImage) -> Result<()> {
        match group.image.label(labels::STATE) {
            None => return Ok(()),
            Some(UNDECIDED) if self.is_kept(&group).await => return Ok(()),
            Some(_) => {}
        }
        tracing::warn!(group.id = %group.handle, "removing incomplete group snapshot");
        self.release_members(&group).await?;
        self.end_group_snapshot(&group).await
    }

    /// Thaws the file systems that were left frozen by an agent that died together with its thaw watchdog.
    async fn release_members(&self, group: &LocatedImage) -> Result<()> {
        let volumes = self.volumes_of(group.members().iter()).await?;
        for found in volumes.iter() {
            let thaw = |_: &LocatedImage, (devices, table): (&Devices, &MountTable)| {
                for mount in devices.mounts(table) {
                    // A raw volume is bind-mounted on a file and has no file system to thaw.
                    if mount.target.is_dir() && freeze::thaw(&mount.target)? == freeze::Thaw::Thawed
                    {
                        tracing::warn!(object = %mount.target.display(), "file system thawed");
                    }
                }
                Ok(())
            };
            found.look(thaw).await?;
        }
        Ok(())
    }

    async fn let_go(self: Arc<Self>, volume: LocatedImage) -> Result<()> {
        self.free_if_held_for_nothing(&volume).await
    }
}
