//! Re-keying after a rotation: the images that open with a former key of their class, one after the other, in the
//! background and while they are used.
//!
//! **Invariant:** when it is said to have ended, no image opens with a former key but those that are named: snapshots and
//! copies that were made meanwhile of what had not been re-keyed are found by another look, after all operations that were
//! in flight.

use std::{collections::HashSet, sync::Arc};

use crate::{
    Result,
    backend::encrypted::{EncryptionSettings, KeySource},
    blocking,
    ops::{Class, Operations},
    types::ImageId,
};

impl Operations {
    /// Re-keys what opens with a former key, in all classes. What cannot be re-keyed keeps its key, and is tried again
    /// after the next start or reload. A class without former keys is only asked for what none of its keys opens.
    pub fn rekey(self: &Arc<Self>) {
        for class in self.classes.iter() {
            self.rekey_class(class);
        }
    }

    pub(crate) fn rekey_class(self: &Arc<Self>, class: Class) {
        let Some(keys) = class.keys.now() else { return };
        let this = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = check(&keys).await {
                tracing::error!(class = %class.name, error = %error.chain(), "a key of the class cannot be used; volumes that are open stay so");
            }
            let done = if keys.previous.is_empty() {
                tell_locked(&class).await
            } else {
                this.rotate(&class).await
            };
            if let Err(error) = done {
                tracing::warn!(class = %class.name, error = %error.chain(), "images with former keys not found");
            }
        });
    }

    async fn rotate(self: &Arc<Self>, class: &Class) -> Result<()> {
        let (mut done, mut failed) = (0, HashSet::new());
        let mut is_settled = false;
        loop {
            let mut outdated = class.backend.outdated().await?;
            let left = outdated.len();
            outdated.retain(|id| !failed.contains(id));
            if outdated.is_empty() && is_settled {
                if done + left > 0 {
                    tracing::info!(class = %class.name, images = done + left, done, "rotation of the key ended");
                }
                return Ok(());
            }
            is_settled = outdated.is_empty();
            if is_settled {
                // One of them may be making a copy of what had its former key then.
                self.changes.until_begun_before_end().await;
            }
            for id in outdated {
                if self.rekey_one(class, id).await {
                    done += 1;
                } else {
                    failed.insert(id);
                }
            }
        }
    }

    /// Re-keys an image once no other operation has it. Returns true if it was re-keyed.
    async fn rekey_one(self: &Arc<Self>, class: &Class, id: ImageId) -> bool {
        let rekeyed = self.changes.run_once_free(id, || {
            let backend = Arc::clone(&class.backend);
            async move { backend.rekey(id).await }
        });
        match rekeyed.await {
            // What went to the trash meanwhile, or was deleted, is another image or none.
            Ok(change) => change.is_made(),
            Err(error) => {
                tracing::warn!(object = %id, error = %error.chain(), "image not re-keyed");
                false
            }
        }
    }
}

/// Checks what can be known of the keys of a class without a volume.
async fn check(keys: &Arc<EncryptionSettings>) -> Result<()> {
    let keys = Arc::clone(keys);
    blocking(move || keys.all().try_for_each(KeySource::check)).await
}

/// Says which images none of the keys of their class opens: a key was removed too early.
async fn tell_locked(class: &Class) -> Result<()> {
    let locked = class.backend.locked().await?;
    if let Some(first) = locked.first() {
        tracing::error!(class = %class.name, images = locked.len(), %first, "no key of the class opens these images; add the key that they had to its previousKeys");
    }
    Ok(())
}
